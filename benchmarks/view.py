"""The gate's view of ten thousand leases: the memory it takes, and the time to be level again after a restart."""

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from benchmarks.worlds import LEASES_TTL_S, World, hold
from crewlet.ports.cells import Cells
from crewlet.ports.errors import Unavailable
from crewlet.seats.gate import ProtocolGate
from crewlet.seats.leases import LeaseStore

LEASES = 10_000
RESTARTS = 3
_RENEWED = "seat:held-7"
_MIB = 1024 * 1024

T = TypeVar("T")


async def measure_in(world: World) -> dict[str, Any]:
    """`view_mb`: what Python holds more once the view is level (MiB), and once every lease was written again.

    `view_level_s`: the median over restarts of every server, from the first read that the bucket answers to the first
    moment at which the view has shown what was written after that.
    """
    store = await world.leases("view")
    epochs = await hold(store, "bench:1", [f"seat:held-{number}" for number in range(LEASES)])
    cells = await world.cells("view_leases", LEASES_TTL_S)
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    gate = ProtocolGate(cells, LEASES_TTL_S, world.clock)
    await gate.floor(await cells.mark())
    filled = _grown(before)
    names = list(epochs)
    for start in range(0, LEASES, 500):
        await asyncio.gather(*(store.renew(name, "bench:1", epochs[name]) for name in names[start : start + 500]))
    await gate.floor(await cells.mark())
    renewed = _grown(before)
    tracemalloc.stop()
    level = [await _restart(world, store, epochs[_RENEWED], cells, gate) for _ in range(RESTARTS)]
    await gate.stop()
    await store.stop()
    return {
        "view_mb": round(max(filled, renewed) / _MIB, 1),
        "view_level_s": round(statistics.median(level), 2),
        "view_level_worst_s": round(max(level), 2),
    }


def _grown(before: int) -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


async def _restart(world: World, store: LeaseStore, epoch: int, cells: Cells, gate: ProtocolGate) -> float:
    await world.restart()
    await _answered(cells.mark)
    answered_at = time.perf_counter()
    # Something new, which only a repaired watch can show.
    await _answered(lambda: store.renew(_RENEWED, "bench:1", epoch))
    last = (await _answered(cells.mark)).last_revision
    while not gate.is_level(last):
        await asyncio.sleep(0.005)
    return time.perf_counter() - answered_at


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.01)
