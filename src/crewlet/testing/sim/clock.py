"""A simulated machine's clock."""

import asyncio
from datetime import datetime, timedelta

from crewlet.testing.sim.loop import SimLoop
from crewlet.testing.virtual import EPOCH


class SimClock:
    """The clock of one machine: it runs a little wrong, and goes on while the node is frozen."""

    def __init__(self, loop: SimLoop, *, rate: float, offset_s: float) -> None:
        self._loop = loop
        self._rate = rate
        self._offset_s = offset_s

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.elapsed())

    def elapsed(self) -> float:
        return self._offset_s + self._rate * self._loop.now_s

    def when(self, reading: float) -> float:
        """The true time at which it shows that."""
        return (reading - self._offset_s) / self._rate

    def sleep(self, seconds: float) -> "asyncio.Future[None]":
        return self._loop.sleep(seconds / self._rate)
