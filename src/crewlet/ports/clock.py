"""Time. Two clocks, because people and deadlines need different ones."""

from collections.abc import Awaitable
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The time of one machine."""

    def now(self) -> datetime:
        """The wall clock, UTC-aware. For people and records only: it may step, so no deadline is taken from it."""
        ...

    def elapsed(self) -> float:
        """Seconds on a clock that never steps back. Every deadline is counted on it.

        It counts time in suspend (CLOCK_BOOTTIME), except under `coordination.type: local`, where no peer can take
        over while this machine sleeps (CLOCK_MONOTONIC). Readings of different processes on one machine compare;
        readings of different machines do not.
        """
        ...

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait. A wait of zero or less still lets other tasks run once.

        Cancellation: ends the wait at once.
        """
        ...
