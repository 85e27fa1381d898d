"""Renewing every lease of one node beside the bare client's pipelined compare-and-sets of as many keys."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.rawleases import RawLeases
from benchmarks.worlds import World, hold
from crewlet.ports.errors import Unavailable
from crewlet.seats.leases import LeaseStore

LEASES = 10_000
ROUNDS = 5
_OWNER = "bench:1"


async def measure_in(world: World) -> dict[str, Any]:
    """`renew_ratio`: of rates, the median of interleaved rounds."""
    store = await world.leases("renew")
    epochs = await hold(store, _OWNER, [f"seat:held-{number}" for number in range(LEASES)])
    bare = await RawLeases.open(world.urls, world.replicas)
    await bare.fill(LEASES)
    ours: list[float] = []
    raw: list[float] = []
    for _ in range(ROUNDS):
        raw.append(LEASES / await bare.renew_all())
        ours.append(LEASES / await _renew_all(store, epochs))
    await bare.close()
    await store.stop()
    return {
        "renew_ratio": round(statistics.median(a / b for a, b in zip(ours, raw, strict=True)), 3),
        "renew_per_s": round(statistics.median(ours)),
        "renew_by_hand_per_s": round(statistics.median(raw)),
    }


async def _renew_all(store: LeaseStore, epochs: dict[str, int]) -> float:
    begun = time.perf_counter()
    answers: Sequence[bool] = await asyncio.gather(
        *(_renew(store, resource, epoch) for resource, epoch in epochs.items())
    )
    took = time.perf_counter() - begun
    if not all(answers):
        raise RuntimeError("a lease was lost")
    return took


async def _renew(store: LeaseStore, resource: str, epoch: int) -> bool:
    """As a heartbeat does: what nobody answered in time is asked again, and costs that much more."""
    while True:
        try:
            return await store.renew(resource, _OWNER, epoch)
        except Unavailable:
            await asyncio.sleep(0.1)
