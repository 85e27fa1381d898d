"""The machine's clocks."""

import asyncio
import time
from datetime import UTC, datetime

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock port over the operating system.

    Args:
        counts_suspend: whether `elapsed` goes on while the machine sleeps. It must where a peer could take over
            meanwhile. Systems without CLOCK_BOOTTIME (macOS) count on CLOCK_MONOTONIC either way.
    """

    def __init__(self, *, counts_suspend: bool = True) -> None:
        self._clock_id = _BOOTTIME if counts_suspend else time.CLOCK_MONOTONIC

    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> float:
        return time.clock_gettime(self._clock_id)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
