"""Seats whose budget is spent wait, and go on when it is not: in virtual time, on one store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.ports.cells import Cells
from crewlet.ports.errors import Unavailable
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.budget import Caps
from crewlet.turns.budgetgate import BudgetGate
from crewlet.turns.budgets import BUDGETS_BUCKET, COMPANY, Budgets
from crewlet.turns.spending import BudgetSpent


class Cuttable:
    """A bucket that stops answering reads when it is told to."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.is_cut = False
        self.reads = 0
        self.before_answer: Callable[[str], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def read(self, key: str) -> Any:
        self.reads += 1
        if self.is_cut:
            raise Unavailable("cut off")
        entry = await self._cells.read(key)
        if self.before_answer is not None:
            await self.before_answer(key)
        return entry


@dataclass
class Rig:
    """One node's gate, and another node's budgets on the same store."""

    caps: dict[str, Caps] = field(default_factory=dict[str, Caps])
    told: list[str] = field(default_factory=list[str])

    async def open(self) -> "Rig":
        self.clock = VirtualClock()
        store = LocalCells(self.clock)
        plain = await store.open(BUDGETS_BUCKET)
        self.cells = Cuttable(plain)
        self.peer = Budgets(plain, self._of, self._zone)
        cells = cast(Cells, self.cells)
        self.gate = BudgetGate(Budgets(cells, self._of, self._zone), cells, self.clock, self.told.append)
        self.gate.start()
        await self.clock.sleep(0.1)
        return self

    def _of(self, spender: str) -> Caps:
        return self.caps.get(spender, Caps())

    def _zone(self) -> tzinfo:
        return UTC

    async def until(self, holds: Callable[[], object], bound_s: float = 60.0) -> None:
        give_up_at = self.clock.elapsed() + bound_s
        while not holds():
            assert self.clock.elapsed() < give_up_at
            await self.clock.sleep(0.1)

    async def close(self) -> None:
        await self.gate.stop()
        await self.peer.stop()


@in_virtual_time
async def test_without_a_cap_nothing_is_read_and_nothing_refused() -> None:
    rig = await Rig().open()
    rig.cells.reads = 0
    assert await rig.gate.screen("alice") is None
    await rig.gate.admit("alice")
    assert rig.cells.reads == 0
    await rig.close()


@in_virtual_time
async def test_the_log_says_once_that_a_seat_is_parked_until_when_and_once_that_it_goes_on() -> None:
    rig = await Rig({"alice": Caps(day=100)}).open()
    with capture_logs() as logs:
        await rig.gate.charge("alice", 100)
        over = await rig.gate.screen("alice")
        assert over is not None
        await rig.gate.screen("alice")
        await rig.clock.sleep((over.until - rig.clock.now()).total_seconds() + 1)
    told = [entry for entry in logs if entry.get("seat") == "alice"]
    assert [(e["event"], e["log_level"]) for e in told] == [
        ("seat_budget_parked", "warning"),
        ("seat_budget_park_released", "info"),
    ]
    assert told[0]["until"] == over.until.isoformat()
    await rig.close()


@pytest.mark.parametrize("spender", ["alice", COMPANY])
def test_a_spent_cap_parks_the_seat_until_its_window_ends(spender: str) -> None:
    @in_virtual_time
    async def case() -> None:
        rig = await Rig({spender: Caps(day=100)}).open()
        assert await rig.gate.screen("alice") is None
        await rig.gate.charge("alice", 100)
        over = await rig.gate.screen("alice")
        assert over is not None and over.spender == spender
        with pytest.raises(BudgetSpent):
            await rig.gate.admit("alice")
        assert rig.told == ["alice"]
        left_s = (over.until - rig.clock.now()).total_seconds()
        await rig.clock.sleep(left_s - 1)
        assert rig.gate.over("alice") is not None
        await rig.clock.sleep(2)
        assert rig.gate.over("alice") is None
        assert rig.told == ["alice", "alice"]
        await rig.gate.admit("alice")
        await rig.close()

    case()


@pytest.mark.parametrize("relief", ["raise", "reset", "document"])
def test_relief_by_another_node_lets_the_seat_go_at_once(relief: str) -> None:
    @in_virtual_time
    async def case() -> None:
        rig = await Rig({"alice": Caps(month=100)}).open()
        await rig.gate.charge("alice", 100)
        assert await rig.gate.screen("alice") is not None
        await rig.clock.sleep(3 * 3600 + 700)  # the gate looks by itself every full hour
        assert rig.gate.over("alice") is not None
        if relief == "raise":
            await rig.peer.set_caps("alice", Caps(month=1000))
        elif relief == "reset":
            await rig.peer.reset("alice")
        else:
            rig.caps["alice"] = Caps()
            rig.gate.recheck()
        await rig.until(lambda: rig.gate.over("alice") is None, bound_s=2.0)
        assert await rig.gate.screen("alice") is None
        await rig.close()

    case()


@in_virtual_time
async def test_a_cap_that_a_person_sets_counts_from_then_on() -> None:
    rig = await Rig().open()
    await rig.gate.charge("alice", 100)
    await rig.gate.admit("alice")
    await rig.peer.set_caps("alice", Caps(day=50))
    await rig.clock.sleep(1)
    with pytest.raises(BudgetSpent):
        await rig.gate.admit("alice")
    await rig.close()


@in_virtual_time
async def test_a_counter_that_cannot_be_read_stops_the_round_and_parks_nothing() -> None:
    rig = await Rig({"alice": Caps(day=100)}).open()
    rig.cells.is_cut = True
    assert await rig.gate.screen("alice") is None
    with pytest.raises(Unavailable):
        await rig.gate.admit("alice")
    assert rig.gate.over("alice") is None and rig.told == []
    await rig.close()


@in_virtual_time
async def test_a_store_that_does_not_answer_lets_nobody_go() -> None:
    rig = await Rig({"alice": Caps(day=100)}).open()
    await rig.gate.charge("alice", 100)
    over = await rig.gate.screen("alice")
    assert over is not None
    await rig.clock.sleep((over.until - rig.clock.now()).total_seconds() - 60)
    rig.cells.is_cut = True
    await rig.clock.sleep(120)
    assert rig.gate.over("alice") is not None
    rig.cells.is_cut = False
    await rig.until(lambda: rig.gate.over("alice") is None)
    await rig.close()


@in_virtual_time
async def test_a_counter_that_fills_again_while_its_reset_is_read_keeps_the_seat_parked() -> None:
    rig = await Rig({"alice": Caps(day=100)}).open()
    await rig.gate.charge("alice", 100)
    assert await rig.gate.screen("alice") is not None
    await rig.clock.sleep(1)
    filled: list[str] = []

    async def fill(key: str) -> None:
        if key == "spent.seat.alice" and not filled:
            filled.append(key)
            await rig.peer.charge("alice", 100)
            assert await rig.gate.screen("alice") is not None

    rig.cells.before_answer = fill
    await rig.peer.reset("alice")
    await rig.clock.sleep(10)
    assert filled and rig.gate.over("alice") is not None
    await rig.close()
