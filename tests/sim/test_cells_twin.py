"""The simulated store answers what every store of cells promises."""

import asyncio
from contextvars import copy_context

import pytest

from crewlet.ports.cells import CellStore
from crewlet.testing.contracts.cells import CellsContract
from crewlet.testing.sim.cells import SimCellStore, SimStore, Unwatched
from crewlet.testing.sim.dice import Dice, SimEntropy
from crewlet.testing.sim.history import History
from crewlet.testing.sim.loop import Process, SimLoop
from crewlet.testing.sim.wire import Broker, Line, Wire


class _Nobody(Unwatched):
    """Observes, and keeps nothing."""

    def wrote(self, bucket: str, key: str, value: bytes | None, revision: int) -> None: ...

    def was_read(self, bucket: str, key: str, is_there: bool) -> None: ...


class _World:
    """One simulated store, and a line of its own for each client."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._broker = Broker(History())
        self._store = SimStore(self._broker, Dice(1, "store"), _Nobody())
        self._clients = 0

    async def store(self) -> CellStore:
        self._clients += 1
        name = f"client {self._clients}"
        wire = Wire(Process(name), self._line, self._broker, Dice(1, name), copy_context())
        return SimCellStore(self._store, wire, SimEntropy(Dice(2, name)).token, _Nobody())

    def name(self, base: str) -> str:
        return base

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("line", [Line(), Line(jitter_s=0.04, late=0.2, late_s=0.15)], ids=["good line", "slow line"])
@pytest.mark.parametrize("name", [name for name in dir(CellsContract) if name.startswith("test_")])
def test_the_simulated_store_keeps_the_contract(name: str, line: Line) -> None:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(getattr(CellsContract(), name)(_World(line)))
    finally:
        loop.abandon()
        asyncio.set_event_loop(None)
        loop.close()
