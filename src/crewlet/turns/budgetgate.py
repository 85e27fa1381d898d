"""Which seats may spend nothing more, as one node knows it: their mail waits, under a hold of its own.

A seat is parked when a counter that was read says so, and by nothing else. It is let go as soon as a window ends by the
store's clock, a cap is raised, a counter is reset, or the company's document changes: each has the counters read anew.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from crewlet.kit.backoff import Backoff
from crewlet.kit.supervise import Tasks
from crewlet.mail.switchboard import either
from crewlet.ports.cells import Cells, Gone, Level, Put, WatchEvent
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.turns.budget import Over
from crewlet.turns.budgets import CAPS_PREFIX, Budgets
from crewlet.turns.spending import BudgetSpent

_log = structlog.get_logger()

_LONGEST_SLEEP_S = 3600.0
_WARN_EVERY = 20


class BudgetGate:
    """The budgets as the turns of one node meet them; see `spending.Spending`.

    Args:
        cells: the bucket of the budgets.
        clock: this machine's; it only paces.
        on_change: told of a seat that was parked or let go. What it raises is logged.
    """

    def __init__(self, budgets: Budgets, cells: Cells, clock: Clock, on_change: Callable[[str], None]) -> None:
        self._budgets = budgets
        self._cells = cells
        self._clock = clock
        self._on_change = on_change
        self._parked: dict[str, Over] = {}
        self._set: set[str] = set()
        self._is_level = False
        self._changed = asyncio.Event()
        self._tasks = Tasks("budget gate")

    def start(self) -> None:
        """Begin to follow the caps."""
        self._tasks.start_eternal(self._follow(), "caps")
        self._tasks.start_eternal(self._let_go(), "windows")

    async def stop(self) -> None:
        """End it, and give up the charges that nobody has answered."""
        await self._tasks.stop()
        await self._budgets.stop()

    def over(self, handle: str) -> Over | None:
        """The cap that keeps a seat's mail waiting, as far as this node has read."""
        return self._parked.get(handle)

    def recheck(self) -> None:
        """The company's document has changed: the caps in it, or its clock."""
        self._changed.set()

    async def screen(self, handle: str) -> Over | None:
        """See the port."""
        if self._is_unlimited(handle):
            return None
        try:
            over = await self._budgets.refusal(handle)
        except Unavailable as error:
            _log.warning("budget_unread", seat=handle, error=str(error))
            return None
        if over is not None:
            self._park(handle, over)
        return over

    async def admit(self, handle: str) -> None:
        """See the port."""
        if self._is_unlimited(handle):
            return
        over = await self._budgets.refusal(handle)
        if over is not None:
            self._park(handle, over)
            raise BudgetSpent(over)

    async def charge(self, handle: str, tokens: int) -> None:
        """See the port."""
        await self._budgets.charge(handle, tokens)

    def _is_unlimited(self, handle: str) -> bool:
        """Whether no cap can be in force, by the document and by a watch that is level: then nothing need be read."""
        return self._is_level and self._budgets.is_unlimited(handle, self._set)

    def _park(self, handle: str, over: Over) -> None:
        is_new = handle not in self._parked
        self._parked[handle] = over
        if is_new:
            _log.warning("seat_budget_parked", seat=handle, reason=str(over), until=over.until.isoformat())
            self._changed.set()
            self._tell(handle)

    def _release(self, handle: str) -> None:
        if self._parked.pop(handle, None) is not None:
            _log.info("seat_budget_park_released", seat=handle)
            self._tell(handle)

    async def _follow(self) -> None:
        delays = Backoff(0.2, 5.0)
        while True:
            try:
                async with self._cells.watch(CAPS_PREFIX) as events:
                    await self._heed(events, delays)
                error = "the watch ended"
            except Unavailable as unavailable:
                error = str(unavailable)
            self._is_level = False
            _log.warning("budgets_not_watched", error=error)
            await self._clock.sleep(delays.next_s())

    async def _heed(self, events: AsyncIterator[WatchEvent], delays: Backoff) -> None:
        seen: set[str] = set()
        async for event in events:
            delays.reset()
            match event:
                case Put(entry):
                    seen.add(entry.key)
                    self._set.add(entry.key)
                case Gone(key):
                    seen.discard(key)
                    self._set.discard(key)
                case Level(is_reset):
                    if is_reset:
                        self._set = seen.copy()
                    self._is_level = True
            self._changed.set()

    async def _let_go(self) -> None:
        """Read anew for those who are parked, whenever that may have come to an end."""
        delays = Backoff(0.2, 5.0)
        failures = 0
        while True:
            self._changed.clear()
            if not self._parked:
                await self._changed.wait()
                continue
            try:
                for handle, over in list(self._parked.items()):
                    await self._look_again(handle, over)
                left_s = await self._left_s()
            except Unavailable as error:
                if failures % _WARN_EVERY == 0:
                    _log.warning("budget_unread", error=str(error))
                failures += 1
                await either(self._changed.wait(), self._clock.sleep(delays.next_s()))
                continue
            delays.reset()
            failures = 0
            if left_s is not None:
                await either(self._changed.wait(), self._clock.sleep(min(left_s, _LONGEST_SLEEP_S)))

    async def _look_again(self, handle: str, over: Over) -> None:
        now = await self._budgets.refusal(handle)
        if self._parked.get(handle) is not over:
            return  # somebody else has read it meanwhile
        if now is None:
            self._release(handle)
        else:
            self._parked[handle] = now

    async def _left_s(self) -> float | None:
        """Until the first window ends, by the store's clock; None when nobody is parked."""
        ends = [over.until for over in self._parked.values()]
        if not ends:
            return None
        now = (await self._cells.mark()).store_now
        return max((min(ends) - now).total_seconds(), 0.01)

    def _tell(self, handle: str) -> None:
        try:
            self._on_change(handle)
        except Exception:  # noqa: BLE001 -- the node's code; without these loops no hold would be lifted
            _log.exception("budget_notice_broke")
