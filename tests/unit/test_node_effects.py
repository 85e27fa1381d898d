"""The record of an outside effect, when its seat moves in the middle: whole nodes over twins, in virtual time."""

import asyncio
from typing import Any, cast

from node_rig import Fleet

from crewlet.company.model import Seat
from crewlet.ports.cells import BucketSpec, Cells, CellStore, Unknown, WriteResult
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Runner, Turn, TurnResult


class _Reaching:
    """Reaches outside at once, and then works for a minute."""

    kind = "reaching"

    def __init__(self, node: str, reached: list[str]) -> None:
        self._node = node
        self._reached = reached

    async def run(self, turn: Turn) -> TurnResult:
        turn.reach("an outside call")
        self._reached.append(self._node)
        await asyncio.sleep(60)
        return TurnResult("delivered")


class _SlowLedger:
    """A ledger whose writes take two seconds, and are lost with the process that sent them."""

    def __init__(self, cells: Cells, fleet: "_Effects", node: str) -> None:
        self._cells = cells
        self._fleet = fleet
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        await self._fleet.clock.sleep(2)
        if self._node in self._fleet.gone:
            return Unknown("lost with its sender")
        return await self._cells.create(key, value, **how)


class _Store:
    def __init__(self, store: CellStore, fleet: "_Effects", node: str) -> None:
        self._store = store
        self._fleet = fleet
        self._node = node

    async def open(self, spec: BucketSpec) -> Cells:
        cells = await self._store.open(spec)
        return cast("Cells", _SlowLedger(cells, self._fleet, self._node)) if spec.name == "crewlet_ledger" else cells


class _Effects(Fleet):
    gone: set[str]
    reached: list[str]

    def runner(self, seat: Seat, node: str) -> Runner:
        return _Reaching(node, self.reached)


@in_virtual_time
async def test_a_node_that_is_stopped_in_a_hurry_leaves_the_record_of_an_effect_to_the_seats_next_owner() -> None:
    fleet = _Effects(("a",))
    fleet.gone, fleet.reached = set(), []
    fleet.store_of = lambda name: _Store(fleet.store, fleet, name)
    first = await fleet.node("n1")
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.reached, "the effect is made")
    await fleet.node("n2")
    del fleet.nodes["n1"]
    await first.close()
    fleet.gone.add("n1")
    await fleet.until(lambda: fleet.holder("a") == "n2", "the peer has the seat")
    await fleet.clock.sleep(120)
    assert fleet.reached == ["n1"], "the effect was made twice"
    await fleet.close()
