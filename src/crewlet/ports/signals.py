"""Word of mouth between running processes: a broadcast, and a question with a time-out. Nothing is kept.

Nothing may rest on a signal. It can be lost, late, doubled or forged, and whoever needs to be sure reads the records.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from crewlet.ports.errors import Misuse

MAX_SIGNAL_BYTES = 256 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)

Hear = Callable[[bytes], None]
"""Told of one broadcast. It must not block; what it raises is logged and harms nobody."""

Answer = Callable[[bytes], Awaitable[bytes | None]]
"""Answers one question, in a task of its own. None says nothing; nor does one that raises, which is logged."""

Forget = Callable[[], Awaitable[None]]
"""Ends a `listen` or `serve`: from its call on nothing new is heard. Never raises for the world; harmless when
repeated. Answers that are being made are not waited for."""


class Signals(Protocol):
    """Every process of the company that is connected at that moment. A name is tokens between dots, without wildcards.

    Every verb raises Misuse for a name that is none or for more than MAX_SIGNAL_BYTES, and NotLive after the stop.
    """

    def broadcast(self, name: str, data: bytes) -> None:
        """Tell everybody who listens to this name now, this process included. Returns at once; lost is lost."""
        ...

    async def listen(self, name: str, hear: Hear) -> Forget:
        """Be told of every broadcast of this name from about now on, also after the connection broke and came back."""
        ...

    async def ask(self, name: str, data: bytes, *, timeout_s: float, enough: int = 1) -> Sequence[bytes]:
        """Ask everybody who serves this name.

        Args:
            timeout_s: how long answers are waited for.
            enough: so many end the wait, 1 or more.

        Returns:
            The answers that came, at most `enough`, in the order in which they came. None means that nothing is known:
            whoever is silent may be there all the same.

        Cancellation: ends the wait; answers that come later are dropped.
        """
        ...

    async def serve(self, name: str, answer: Answer) -> Forget:
        """Answer questions of this name, several at once, until it is forgotten."""
        ...


def check_signal(name: str, data: bytes = b"") -> None:
    """Raises Misuse unless this can be a signal."""
    if not _NAME.fullmatch(name) or len(name) > 200:
        raise Misuse(f"not the name of a signal: {name!r}")
    if len(data) > MAX_SIGNAL_BYTES:
        raise Misuse(f"signal {name}: {len(data)} bytes are over the {MAX_SIGNAL_BYTES} that one may have")


def check_enough(enough: int) -> None:
    """Raises Misuse unless so many answers can be waited for."""
    if enough < 1:
        raise Misuse(f"at least 1 answer is waited for, not {enough}")


class NoSignals:
    """For a process that is alone: nobody hears, nobody answers."""

    def broadcast(self, name: str, data: bytes) -> None:
        """Tell nobody."""
        check_signal(name, data)

    async def listen(self, name: str, hear: Hear) -> Forget:
        """Never hear anything."""
        del hear
        check_signal(name)
        return _forget_nothing

    async def ask(self, name: str, data: bytes, *, timeout_s: float, enough: int = 1) -> Sequence[bytes]:
        """Nobody answers."""
        del timeout_s
        check_signal(name, data)
        check_enough(enough)
        return ()

    async def serve(self, name: str, answer: Answer) -> Forget:
        """Nobody asks."""
        del answer
        check_signal(name)
        return _forget_nothing


async def _forget_nothing() -> None:
    return None
