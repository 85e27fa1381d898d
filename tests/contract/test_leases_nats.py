"""The lease layer on a real broker: one server, and three members."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager

import pytest
from lease_checks import EVERYWHERE

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec
from crewlet.seats.dutyleases import LONGEST_S
from crewlet.testing.brokers import Cluster, Server, three_members
from crewlet.testing.contracts import leasefaults, leasegate
from crewlet.testing.contracts.leaseworld import LeasesWorld

TTL_S = 4.0
"""A quarter of it is what some checks have for two calls, also on a busy machine."""

_worlds = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    with three_members(tmp_path_factory.mktemp("leases")) as running:
        yield running


@asynccontextmanager
async def world_on(urls: tuple[str, ...], *, replicas: int, ttl_s: float = TTL_S) -> AsyncGenerator[LeasesWorld]:
    clock, entropy = SystemClock(), SystemEntropy()
    address = BrokerAddress(urls=urls, name="node-test:1")
    connection = await Connection.open(address, clock=clock, startup_timeout_s=30, replicas=replicas)
    cells = NatsCells(connection, entropy=entropy)
    place = next(_worlds)
    world = LeasesWorld(
        leases=await cells.open(BucketSpec(f"leases_{place}", max_age_s=ttl_s)),
        epochs=await cells.open(BucketSpec(f"epochs_{place}")),
        duties=await cells.open(BucketSpec(f"duties_{place}", max_age_s=LONGEST_S, allows_entry_ttl=True)),
        clock=clock,
        entropy=entropy,
        sleep=clock.sleep,
    )
    try:
        yield world
    finally:
        await world.stop()
        await connection.close()


def _ttl_s(check: Callable[[LeasesWorld], Awaitable[None]]) -> float:
    # Thousands of writes take their time, and a call's budget is a share of the TTL.
    return 30.0 if check is leasegate.a_gated_claim_costs_the_same_with_many_leases else TTL_S


@pytest.mark.real
@pytest.mark.parametrize("check", EVERYWHERE)
async def test_leases_on_one_server(server: Server, check: Callable[[LeasesWorld], Awaitable[None]]) -> None:
    async with world_on(server.urls, replicas=1, ttl_s=_ttl_s(check)) as world:
        await check(world)


@pytest.mark.real
@pytest.mark.parametrize("seed", range(2))
async def test_history_holds_under_chance_faults_on_one_server(server: Server, seed: int) -> None:
    async with world_on(server.urls, replicas=1, ttl_s=1.0) as world:
        await leasefaults.history_holds_under_chance_faults(world, seed)


@pytest.mark.cluster
@pytest.mark.parametrize("check", EVERYWHERE)
async def test_leases_on_three_members(cluster: Cluster, check: Callable[[LeasesWorld], Awaitable[None]]) -> None:
    async with world_on(cluster.urls, replicas=3, ttl_s=_ttl_s(check)) as world:
        await check(world)
