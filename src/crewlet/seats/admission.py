"""Whether a new turn may start: freshness of the last proof of ownership, and the two edges told to the consumer.

A renewal that was answered proves ownership for a TTL from before it was sent. A turn may start within one heartbeat
of that instant, so that every turn begins with at least two thirds of a TTL of proven ownership before it.
"""


def heartbeat_window_s(ttl_s: float, asked_s: float | None) -> float:
    """How old the last proof may be for a turn to start: what was asked for, at most a third of the TTL."""
    third = ttl_s / 3
    return third if asked_s is None else min(asked_s, third)


def loop_period_s(window_s: float) -> float:
    """The time between the starts of two renewals of a seat.

    Shorter than the window by the time an answer may take, or else a healthy node would refuse its own seats while
    each renewal is on its way.
    """
    return window_s - min(window_s / 5, 3.0)


def is_fresh(now: float, proven_at: float, window_s: float) -> bool:
    """Whether a turn may start, `proven_at` being when the last answered renewal was sent."""
    return now - proven_at <= window_s


class Admission:
    """The edges of one tenure: told `False` once when renewals begin to fail, `True` once when one succeeds again.

    A deferral stops the consumer too, so that one which was noted asks for the second edge as well. Nothing else does:
    an edge without a stopped consumer behind it would undo somebody else's quiesce.
    """

    def __init__(self) -> None:
        self._is_stopped = False
        self._is_deferral_noted = False

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def note_deferral(self) -> None:
        """A delivery was deferred: its consumer stops, or is about to."""
        self._is_deferral_noted = True

    def fail(self) -> bool:
        """A renewal failed. Whether to tell the consumer to stop."""
        is_edge = not self._is_stopped
        self._is_stopped = True
        return is_edge

    def renew(self, *, is_busy: bool) -> bool:
        """A renewal was answered. Whether to tell the consumer to go on.

        A handler that noted a deferral and still runs has yet to stop its consumer: going on now would be undone by
        that stop, for good. The note stays for the next renewal then.
        """
        is_edge = self._is_stopped or (self._is_deferral_noted and not is_busy)
        self._is_stopped = False
        if not is_busy:
            self._is_deferral_noted = False
        return is_edge

    def recover(self) -> None:
        """A renewal was answered before the seat is established: nobody is told, and a deferral stays noted."""
        self._is_stopped = False

    def reopen(self, *, is_busy: bool) -> bool:
        """What a deferral waited for has come. Whether to tell the consumer to go on before the next renewal.

        Not while renewals fail: that stop is theirs to end.
        """
        return not self._is_stopped and self.renew(is_busy=is_busy)
