"""When the next pass runs: at the tick, or once an interval early when asked for; and what may be won in between."""

import asyncio
from collections import deque

from crewlet.ports.clock import Clock

EARLY_CLAIMS = 4


class EarlyClaims:
    """How many seats may be won between the ticks: so many in any stretch of one interval. A claim lost is free."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._taken_at: deque[float] = deque()

    def take(self) -> bool:
        """Before a claim: take one of what is left, so that claims side by side cannot spend it twice. False: none."""
        now = self._clock.elapsed()
        while self._taken_at and now - self._taken_at[0] >= self._interval_s:
            self._taken_at.popleft()
        if len(self._taken_at) >= EARLY_CLAIMS:
            return False
        self._taken_at.append(now)
        return True

    def put_back(self) -> None:
        """The claim was not won."""
        if self._taken_at:
            self._taken_at.pop()


class SweepPace:
    """Ticks an interval apart, counted from the beginning of the pass before.

    One request an interval is honoured at once, and its pass takes the place of the tick. A second waits for the tick.
    """

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._due_at = 0.0
        self._may_come_early = True
        self._is_asked = False
        self._nap: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Ask for a pass. One that has yet to begin answers it."""
        self._is_asked = True
        if self._nap is not None:
            self._nap.cancel()

    def begin_pass(self) -> None:
        """A pass begins: it answers every request so far, and the next tick is an interval from now."""
        self._is_asked = False
        self._due_at = self._clock.elapsed() + self._interval_s

    async def next_pass(self) -> bool:
        """Wait until the next pass is due. True when it was asked for and comes before its tick."""
        is_early = False
        while (wait_s := self._due_at - self._clock.elapsed()) > 0:
            if self._may_come_early and self._is_asked:
                is_early = True
                break
            if self._may_come_early:
                await self._doze(wait_s)
            else:
                await self._clock.sleep(wait_s)
        self._may_come_early = not is_early
        self.begin_pass()
        return is_early

    async def _doze(self, seconds: float) -> None:
        """Wait, until a request comes at most."""
        nap = self._nap = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait([nap])
        finally:
            nap.cancel()
            self._nap = None
