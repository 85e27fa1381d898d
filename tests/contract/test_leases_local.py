"""The lease layer on cells in this process, in virtual time."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from lease_checks import EVERYWHERE, VIRTUAL_ONLY

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.seats.dutyleases import DUTIES_BUCKET
from crewlet.seats.leases import EPOCHS_BUCKET, leases_bucket
from crewlet.testing.contracts import leasefaults
from crewlet.testing.contracts.leaseworld import LeasesWorld
from crewlet.testing.virtual import VirtualClock, run


@asynccontextmanager
async def _world() -> AsyncGenerator[LeasesWorld]:
    clock = VirtualClock()
    cells = LocalCells(clock)
    world = LeasesWorld(
        leases=await cells.open(leases_bucket(30.0)),
        epochs=await cells.open(EPOCHS_BUCKET),
        duties=await cells.open(DUTIES_BUCKET),
        clock=clock,
        entropy=SystemEntropy(),
        sleep=clock.sleep,
    )
    try:
        yield world
    finally:
        await world.stop()


@pytest.mark.parametrize("check", [*EVERYWHERE, *VIRTUAL_ONLY])
def test_leases(check: Callable[[LeasesWorld], Awaitable[None]]) -> None:
    async def main() -> None:
        async with _world() as world:
            await check(world)

    run(main())


@pytest.mark.parametrize("seed", range(40))
def test_history_holds_under_chance_faults(seed: int) -> None:
    async def main() -> None:
        async with _world() as world:
            await leasefaults.history_holds_under_chance_faults(world, seed)

    run(main())
