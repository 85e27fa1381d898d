"""A gated claim beside the requests it consists of, made by hand with the bare client in the same order.

Both sides take up a released lease: three reads side by side, three writes that each depend on the one before, and the
read of the commit's own time. The releases in between are not timed.
"""

import statistics
import time
from typing import Any

from benchmarks.rawleases import RawLeases
from benchmarks.worlds import World, granted_epoch, hold
from crewlet.seats.leases import LeaseStore

ROUNDS = 400
FEW = 10
MANY = 10_000
_RESOURCE = "seat:claimed"
_OWNER = "bench:1"


async def measure_in(world: World) -> dict[str, Any]:
    """`claim_ratio` beside the bare requests, `claim_flat_ratio` at MANY leases held over at FEW: of medians."""
    few = await _store(world, "few", FEW)
    many = await _store(world, "many", MANY)
    bare = await RawLeases.open(world.urls, world.replicas)
    by_hand: list[float] = []
    at_few: list[float] = []
    at_many: list[float] = []
    for _ in range(ROUNDS):
        by_hand.append(await bare.claim())
        await bare.release()
        at_few.append(await _claim(few))
        at_many.append(await _claim(many))
    await bare.close()
    await few.stop()
    await many.stop()
    hand_s, few_s, many_s = map(statistics.median, (by_hand, at_few, at_many))
    return {
        "claim_ratio": round(few_s / hand_s, 3),
        "claim_flat_ratio": round(many_s / few_s, 3),
        "claim_ms": round(few_s * 1000, 3),
        "claim_by_hand_ms": round(hand_s * 1000, 3),
    }


async def _store(world: World, bucket: str, count: int) -> LeaseStore:
    store = await world.leases(bucket)
    await hold(store, _OWNER, [f"seat:held-{number}" for number in range(count)])
    # The first judgement opens the gate's view, which is paid once a node.
    await _claim(store)
    return store


async def _claim(store: LeaseStore) -> float:
    begun = time.perf_counter()
    result = await store.claim(_RESOURCE, _OWNER, preferred="bench", gated=True)
    took = time.perf_counter() - begun
    await store.release(_RESOURCE, _OWNER, granted_epoch(result))
    return took
