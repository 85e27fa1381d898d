"""The protocol gate's view, on a watch whose events the test writes itself."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crewlet.ports.cells import Cells, Entry, Gone, Level, Mark, Put, WatchEvent, WriteResult
from crewlet.ports.errors import Unavailable
from crewlet.seats.gate import IDLE_S, ProtocolGate
from crewlet.seats.records import LeaseRecord, encode
from crewlet.testing.virtual import VirtualClock, in_virtual_time, settle

NOW = datetime(2030, 1, 1, tzinfo=UTC)
AGE_S = 30.0


def row(key: str, revision: int, protocol: int, *, written_at: datetime = NOW, released: bool = False) -> Entry:
    record = LeaseRecord(owner="o:1", epoch=1, protocol=protocol, released=released)
    return Entry(key, encode(record), revision, written_at)


class ScriptedCells(Cells):
    """A bucket of which only what a gate reads exists."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[WatchEvent | Exception] = asyncio.Queue()
        self.listing: list[Entry] = []
        self.watches = 0
        self.lists = 0

    @property
    def name(self) -> str:
        return "leases"

    @property
    def max_age_s(self) -> float:
        return AGE_S

    def tell(self, *events: WatchEvent | Exception) -> None:
        for event in events:
            self.events.put_nowait(event)

    async def mark(self) -> Mark:
        raise NotImplementedError

    async def list(self, prefix: str = "") -> Sequence[Entry]:
        self.lists += 1
        return self.listing

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        self.watches += 1
        yield self._events()

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        raise NotImplementedError

    def watch(self, prefix: str = "") -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._watch()

    async def _events(self) -> AsyncIterator[WatchEvent]:
        while True:
            event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event

    async def read(self, key: str) -> Entry | None:
        raise NotImplementedError

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        raise NotImplementedError

    async def replace(self, key: str, value: bytes, **how: Any) -> WriteResult:
        raise NotImplementedError

    async def remove(self, key: str, **how: Any) -> WriteResult:
        raise NotImplementedError


def mark(revision: int, *, seconds: float = 0.0) -> Mark:
    return Mark(NOW + timedelta(seconds=seconds), revision)


@in_virtual_time
async def test_a_judgement_waits_for_the_last_write() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    cells.tell(Put(row("seat.a", 1, 4)), Level())
    judging = asyncio.create_task(gate.floor(mark(2)))
    await settle()
    assert not judging.done()
    cells.tell(Put(row("node.o", 2, 1)))
    assert await judging == 1
    await gate.stop()


@in_virtual_time
async def test_the_last_write_may_be_gone_when_the_watch_begins() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    cells.tell(Put(row("seat.a", 1, 4)), Level(revision=9))
    assert await gate.floor(mark(9)) == 4
    assert cells.lists == 0
    await gate.stop()


@in_virtual_time
async def test_after_a_repair_the_view_is_what_the_repair_brought() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    cells.tell(Put(row("seat.a", 1, 4)), Put(row("node.o", 2, 1)), Level())
    assert await gate.floor(mark(2)) == 1
    cells.tell(Put(row("seat.a", 1, 4)), Put(row("seat.b", 5, 3)), Level(is_reset=True))
    assert await gate.floor(mark(5)) == 3
    assert (cells.watches, cells.lists) == (1, 0)
    await gate.stop()


@in_virtual_time
async def test_the_last_write_may_be_gone_when_the_watch_was_repaired() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    cells.tell(Put(row("seat.a", 1, 4)), Level())
    assert await gate.floor(mark(1)) == 4
    cells.tell(Level(is_reset=True, revision=9))
    assert await gate.floor(mark(9)) is None
    assert (cells.watches, cells.lists) == (1, 0)
    await gate.stop()


@in_virtual_time
async def test_a_view_that_cannot_be_brought_level_is_judged_from_a_full_read_and_begun_anew() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    cells.tell(Put(row("seat.a", 1, 4)), Level())
    assert await gate.floor(mark(1)) == 4
    cells.listing = [row("seat.a", 1, 4), row("seat.b", 7, 2)]
    assert await gate.floor(mark(8)) == 2
    cells.tell(Put(row("seat.a", 1, 4)), Put(row("seat.b", 7, 2)), Level(revision=8))
    assert await gate.floor(mark(8)) == 2
    assert (cells.watches, cells.lists) == (2, 1)
    await gate.stop()


@in_virtual_time
async def test_a_view_that_breaks_is_unknown_and_the_next_judgement_begins_another() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    judging = asyncio.create_task(gate.floor(mark(1)))
    await settle()
    cells.tell(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await judging
    cells.tell(Put(row("seat.a", 1, 4)), Level())
    assert await gate.floor(mark(1)) == 4
    await gate.stop()


@in_virtual_time
async def test_lapsed_released_and_removed_leases_do_not_count() -> None:
    cells = ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, VirtualClock())
    cells.tell(
        Put(row("seat.lapsed", 1, 1, written_at=NOW - timedelta(seconds=AGE_S))),
        Put(row("seat.released", 2, 1)),
        Put(row("seat.removed", 3, 2)),
        Put(row("worker.duty", 4, 1)),
        Put(row("seat.live", 5, 3)),
        Level(),
        Put(row("seat.released", 6, 1, released=True)),
        Gone("seat.removed", 7),
    )
    assert await gate.floor(mark(7)) == 3
    assert await gate.floor(mark(7, seconds=AGE_S)) is None
    await gate.stop()


@in_virtual_time
async def test_an_idle_view_stops_and_a_judged_one_stays() -> None:
    clock, cells = VirtualClock(), ScriptedCells()
    gate = ProtocolGate(cells, AGE_S, clock)
    cells.tell(Level())
    await gate.floor(mark(0))
    await clock.sleep(IDLE_S - 1)
    await gate.floor(mark(0))
    await clock.sleep(IDLE_S - 1)
    assert gate.is_watching
    await clock.sleep(2)
    assert not gate.is_watching
    await gate.stop()
