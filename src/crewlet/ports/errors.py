"""Errors split by whose doing they are. Adapters translate into these once and keep `__cause__`."""


class CrewletError(Exception):
    """The root of what this project raises on purpose."""


class Unavailable(CrewletError):
    """The world did not answer, or not definitely. Nothing is known about whether the request took effect.

    The caller treats the answer as unknown (never as no) and may try again.
    """


class NotTaken(Unavailable):
    """The request reached nobody, or was turned away: it had no effect and will have none."""


class Unreadable(Unavailable):
    """A record is there, and none that this build can read: what it says is unknown for as long as it stays."""


class Fenced(CrewletError):
    """The caller is not, or no longer provably, the holder. It stops at once and writes nothing more."""


class Misuse(CrewletError, ValueError):
    """A caller's bug: an argument outside the range the promise names, or a verb on something already closed."""


class NotLive(Misuse):
    """A verb was used on an adapter that is stopped, or was never started. It left no state behind."""
