"""The machine's clocks."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock port over the operating system.

    Args:
        counts_suspend: whether `elapsed` goes on while the machine sleeps. It must where a peer could take over
            meanwhile. Systems without CLOCK_BOOTTIME (macOS) count on CLOCK_MONOTONIC either way.
    """

    def __init__(self, *, counts_suspend: bool = True) -> None:
        # No method: it is read a dozen times for each mail, and a call of Python's costs twice the reading.
        self.elapsed: Callable[[], float] = partial(
            time.clock_gettime, _BOOTTIME if counts_suspend else time.CLOCK_MONOTONIC
        )

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
