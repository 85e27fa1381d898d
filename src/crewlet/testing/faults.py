"""Faults over cells: lost answers, late writes, writes that never arrive, stale reads, silence. Scripted, or seeded.

A write that the caller has given up on may still reach the store; that is what makes these faults worth testing. The
wrapper keeps its own tasks for such writes, so that cancelling the caller does not stop them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from crewlet.kit.supervise import Tasks
from crewlet.ports.cells import Admit, Cells, Entry, Mark, Unknown, WatchEvent, WriteResult
from crewlet.ports.errors import Unavailable


class Fault(Enum):
    """What happens to one call."""

    NONE = "none"
    LOST = "lost"
    """A write never reaches the store; the caller learns nothing."""
    UNANSWERED = "unanswered"
    """A write reaches the store at once; the caller learns nothing."""
    LATE = "late"
    """The caller learns nothing, and the write reaches the store when `deliver_late` is called, or by itself later."""
    HANGS = "hangs"
    """The call never ends and never arrives."""
    ARRIVES_AND_HANGS = "arrives and hangs"
    """A write reaches the store at once; the call never ends."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each thing happens to a seeded wrapper, each from 0 to 1.

    Attributes:
        lost, unanswered, late: of writes.
        unavailable: of reads.
        delay_s: the longest a call is held up before it reaches the store.
        late_s: the longest after which a late write lands by itself.
    """

    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    unavailable: float = 0.0
    delay_s: float = 0.0
    late_s: float = 1.0


@dataclass(slots=True)
class _Script:
    verb: str
    fault: Fault
    skip: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the wrapper saw. `answer` is what the caller got; None while it waits, or for a read."""

    verb: str
    key: str
    fault: Fault = Fault.NONE
    answer: WriteResult | None = field(default=None, compare=False)


class FaultyCells(Cells):
    """A bucket seen through a bad wire.

    Args:
        cells: the bucket.
        sleep: the clock's; used for delays.
        random: decides what `faults` leaves to chance.
    """

    def __init__(
        self,
        cells: Cells,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Random | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._cells = cells
        self._sleep = sleep
        self._random = random or Random(0)
        self.faults = faults or Faults()
        self.is_cut = False
        self._stale: tuple[int, dict[str, Entry]] | None = None
        self.calls: list[Call] = []
        self._scripts: deque[_Script] = deque()
        self._late: deque[Callable[[], Awaitable[WriteResult]]] = deque()
        self._tasks = Tasks("faulty cells")

    @property
    def name(self) -> str:
        return self._cells.name

    @property
    def max_age_s(self) -> float | None:
        return self._cells.max_age_s

    def next(self, verb: str, fault: Fault, *, skip: int = 0) -> None:
        """Do this to the next call of a verb (`create`, `replace`, `remove`, `read`, `mark`, `list`), after `skip`."""
        self._scripts.append(_Script(verb, fault, skip))

    def cut(self) -> None:
        """From now on nobody answers, and nothing arrives."""
        self.is_cut = True

    async def go_stale(self) -> None:
        """From now on be like a member that lost its quorum: reads answer what is there now, and no write lands."""
        entries = {entry.key: entry for entry in await self._cells.list()}
        self._stale = (await self._cells.mark()).last_revision, entries

    def stale_as(self, other: "FaultyCells") -> None:
        """Answer reads from the moment at which another view of the bucket went stale."""
        self._stale = other._stale

    def heal(self) -> None:
        """End every fault, the chances included. Late writes stay late."""
        self.is_cut = False
        self._stale = None
        self.faults = Faults()
        self._scripts.clear()

    async def deliver_late(self) -> list[WriteResult]:
        """Let the late writes reach the store, oldest first, and say what the store made of them."""
        results: list[WriteResult] = []
        while self._late:
            results.append(await self._late.popleft()())
        return results

    async def stop(self) -> None:
        """End the writes that are still under way by themselves."""
        await self._tasks.stop()

    async def read(self, key: str) -> Entry | None:
        await self._meet("read", key)
        return await self._cells.read(key) if self._stale is None else self._stale[1].get(key)

    async def mark(self) -> Mark:
        await self._meet("mark", "")
        mark = await self._cells.mark()
        return mark if self._stale is None else Mark(mark.store_now, self._stale[0])

    async def list(self, prefix: str = "") -> Sequence[Entry]:
        await self._meet("list", prefix)
        if self._stale is not None:
            return [entry for key, entry in sorted(self._stale[1].items()) if key.startswith(prefix)]
        return await self._cells.list(prefix)

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        return await self._write(
            "create", key, lambda check: self._cells.create(key, value, ttl_s=ttl_s, admit=check), admit
        )

    async def replace(
        self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        return await self._write(
            "replace",
            key,
            lambda check: self._cells.replace(key, value, expect=expect, ttl_s=ttl_s, admit=check),
            admit,
        )

    async def remove(self, key: str, *, expect: int, admit: Admit | None = None) -> WriteResult:
        return await self._write(
            "remove", key, lambda check: self._cells.remove(key, expect=expect, admit=check), admit
        )

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        await self._meet("purge_markers", "")
        return await self._cells.purge_markers(older_than_s, turned)

    def watch(self, prefix: str = "") -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._watch(prefix)

    @asynccontextmanager
    async def _watch(self, prefix: str) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        await self._meet("watch", prefix)
        async with self._cells.watch(prefix) as events:
            yield events

    async def _meet(self, verb: str, key: str) -> None:
        """A read on its way."""
        fault = self._fault(verb)
        self.calls.append(Call(verb, key, fault))
        await self._delay()
        if fault is Fault.HANGS:
            await asyncio.Event().wait()
        if self.is_cut or fault is not Fault.NONE or self._random.random() < self.faults.unavailable:
            raise Unavailable(f"{verb} {self.name}/{key}: a planted fault")

    async def _write(
        self, verb: str, key: str, write: Callable[[Admit | None], Awaitable[WriteResult]], admit: Admit | None
    ) -> WriteResult:
        fault = self._fault(verb)
        if fault is Fault.NONE:
            fault = self._chance()
        place = len(self.calls)
        self.calls.append(Call(verb, key, fault))
        await self._delay()
        if admit is not None:
            admit()
        # What is late has left: nobody asks any more.
        answer = await self._suffer(fault, lambda: write(None if fault is Fault.LATE else admit))
        self.calls[place] = Call(verb, key, fault, answer)
        return answer

    async def _suffer(self, fault: Fault, write: Callable[[], Awaitable[WriteResult]]) -> WriteResult:
        unknown = Unknown("a planted fault")
        if self.is_cut or self._stale is not None or fault is Fault.LOST:
            return unknown
        match fault:
            case Fault.UNANSWERED:
                await write()
                return unknown
            case Fault.LATE:
                self._late.append(write)
                self._tasks.start(self._deliver_in_time(write), "late write")
                return unknown
            case Fault.HANGS:
                await asyncio.Event().wait()
            case Fault.ARRIVES_AND_HANGS:
                await write()
                await asyncio.Event().wait()
            case _:
                pass
        return await write()

    async def _deliver_in_time(self, write: Callable[[], Awaitable[WriteResult]]) -> None:
        if self.faults.late <= 0:
            return
        await self._sleep(self._random.random() * self.faults.late_s)
        if write in self._late:
            self._late.remove(write)
            await write()

    async def _delay(self) -> None:
        if self.faults.delay_s > 0:
            await self._sleep(self._random.random() * self.faults.delay_s)

    def _fault(self, verb: str) -> Fault:
        for script in self._scripts:
            if script.verb == verb:
                if script.skip > 0:
                    script.skip -= 1
                    return Fault.NONE
                self._scripts.remove(script)
                return script.fault
        return Fault.NONE

    def _chance(self) -> Fault:
        draw = self._random.random()
        for fault, share in (
            (Fault.LOST, self.faults.lost),
            (Fault.UNANSWERED, self.faults.unanswered),
            (Fault.LATE, self.faults.late),
        ):
            if draw < share:
                return fault
            draw -= share
        return Fault.NONE
