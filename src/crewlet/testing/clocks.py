"""A machine's clock that a test steps and moves."""

import asyncio
import contextlib
from datetime import datetime, timedelta

from crewlet.adapters.system.clock import SystemClock
from crewlet.ports.clock import Clock


class SteppedClock(Clock):
    """The real clock, until it is stepped or moved."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._step = timedelta(0)
        self._moved_s = 0.0
        self._has_moved = asyncio.Event()

    def step(self, seconds: float) -> None:
        """Set the wall clock, as an operator or a time service would: `now` jumps, `elapsed` does not."""
        self._step += timedelta(seconds=seconds)

    def move(self, seconds: float) -> None:
        """Let this time have passed at once, for deadlines and for whoever sleeps."""
        self._moved_s += seconds
        self._has_moved.set()
        self._has_moved = asyncio.Event()

    def now(self) -> datetime:
        return self._real.now() + self._step + timedelta(seconds=self._moved_s)

    def elapsed(self) -> float:
        return self._real.elapsed() + self._moved_s

    async def sleep(self, seconds: float) -> None:
        wakes_at = self.elapsed() + seconds
        await asyncio.sleep(0)
        while (left_s := wakes_at - self.elapsed()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._has_moved.wait()
