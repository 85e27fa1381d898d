"""Leases on three members: a leader that dies, one that lost its quorum, one that does not know it was deposed."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import pytest
from lease_fault_worlds import LIMIT_S, Fleet, Node, answer_of, at_last, fleet_on, granted_at_last

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.system.clock import SystemClock
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import ClaimRefused, ClaimResult, Granted, Lease
from crewlet.testing.brokers import Cluster, three_members
from crewlet.testing.contracts.leaseworld import granted

pytestmark = [pytest.mark.real, pytest.mark.cluster]

TTL_S = 3.0
CLAIMS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    with three_members(tmp_path_factory.mktemp("lease-faults")) as running:
        yield running


@contextmanager
def frozen(cluster: Cluster, *members: int) -> Generator[None]:
    for member in members:
        cluster.freeze(member)
    try:
        yield
    finally:
        for member in members:
            cluster.thaw(member)


async def leader_of(cluster: Cluster, connection: Connection, bucket: str) -> int:
    """The member that leads a bucket."""

    async def ask_leader() -> int | None:
        try:
            info = await ask(connection, f"STREAM.INFO.KV_{bucket}")
        except Unavailable:
            return None
        name: str | None = info["cluster"].get("leader")
        return None if not name else cluster.index(name)

    return await at_last(ask_leader, lambda leader: leader is not None) or 0


async def led_together(cluster: Cluster, fleet: Fleet, connection: Connection) -> int:
    """Have one member lead both buckets, and say which."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            leader = await leader_of(cluster, connection, fleet.leases_spec.name)
            if await leader_of(cluster, connection, fleet.epochs_spec.name) == leader:
                return leader
            name = cluster.members[leader].plan.name
            body = {"placement": {"preferred": name}}
            await answer_of(ask(connection, f"STREAM.LEADER.STEPDOWN.KV_{fleet.epochs_spec.name}", body))
            await asyncio.sleep(0.1)


@pytest.mark.proves("LS-31")
async def test_a_leader_killed_during_two_hundred_claims_leaves_one_holder_an_epoch_and_nothing_dark(
    cluster: Cluster,
) -> None:
    async with fleet_on(cluster.urls, replicas=3, ttl_s=TTL_S) as fleet:
        nodes = [await fleet.node(f"n{place}:1") for place in range(4)]
        leader = await led_together(cluster, fleet, nodes[0].connection)
        answered: list[object] = []
        ten = asyncio.Event()

        async def claim(place: int) -> None:
            # Two of the nodes want each seat.
            answered.append(await answer_of(nodes[place % 4].claim(f"seat:s{place // 2}")))
            if sum(isinstance(answer, Granted) for answer in answered) >= 10:
                ten.set()

        claims = [asyncio.create_task(claim(place)) for place in range(CLAIMS)]
        async with asyncio.timeout(LIMIT_S):
            await ten.wait()
        try:
            cluster.kill(leader)
            # Those that were on their way may be answered all the same, by the next leader within their budget.
            assert not all(claim.done() for claim in claims), "the leader died too late to matter"
            await asyncio.gather(*claims)
            for place in range(CLAIMS // 2):
                contested = [nodes[(2 * place + offset) % 4] for offset in (0, 1)]
                await one_of_them_holds(contested, f"seat:s{place}")
        finally:
            cluster.restart(leader)


async def one_of_them_holds(nodes: list[Node], resource: str) -> None:
    async def claim() -> bool:
        answers = [await answer_of(node.claim(resource)) for node in nodes]
        return sum(isinstance(answer, Granted) for answer in answers) == 1

    await at_last(claim, lambda is_held: is_held)


async def test_a_member_without_quorum_that_still_answers_reads_decides_nothing(cluster: Cluster) -> None:
    async with fleet_on(cluster.urls, replicas=3, ttl_s=20.0) as fleet:
        scout, clock = await fleet.node("scout:1"), SystemClock()
        leader = await led_together(cluster, fleet, scout.connection)
        node = await fleet.node("n:1", url=cluster.members[leader].url)
        held, leaving = [granted(await node.claim(f"seat:{name}")) for name in ("held", "leaving")]
        with frozen(cluster, *({0, 1, 2} - {leader})):
            assert await node.leases.read("seat.held") is not None, "it answers no reads, and shows nothing"
            claims = [asyncio.create_task(answer_of(node.claim(f"seat:free{place}"))) for place in range(5)]
            assert await asyncio.gather(answer_of(node.renew(held)), answer_of(node.release(leaving))) == [None] * 2
            assert all(not claim.done() or claim.result() is None for claim in claims)
        is_ours = await at_last(lambda: node.renew(held), lambda _: True)
        assert is_ours or clock.elapsed() > fleet.history.good_until("seat:held", "n:1", 1)
        await at_last(lambda: node.release(leaving), lambda _: True)
        for claim in claims:
            assert not isinstance(await claim, ClaimRefused)
        for place in range(5):
            await granted_at_last(claiming(node, f"seat:free{place}"))
        assert (await granted_at_last(claiming(scout, "seat:leaving"))).epoch == 2


async def test_a_deposed_leader_that_does_not_know_it_gives_no_lease_away(cluster: Cluster) -> None:
    """It stood still while the others elected; what waits in its sockets it answers first, from what it knew."""
    async with fleet_on(cluster.urls, replicas=3, ttl_s=TTL_S) as fleet:
        scout = await fleet.node("scout:1")
        leader = await led_together(cluster, fleet, scout.connection)
        others = [cluster.members[member].url for member in {0, 1, 2} - {leader}]
        peer = await fleet.node("m:1", url=others[0])
        link = await fleet.link(cluster.members[leader].url)
        node = await fleet.node("n:1", link=link)
        link.answer_pings()
        lapsing = [granted(await node.claim(f"seat:old{place}")) for place in range(5)]
        with frozen(cluster, leader):
            taken = [await granted_at_last(claiming(peer, f"seat:new{place}")) for place in range(5)]
            retaken = [await granted_at_last(claiming(peer, lease.resource)) for lease in lapsing]
            assert [lease.epoch for lease in retaken] == [2] * 5
            asked: list[Awaitable[object]] = [
                *(node.claim(lease.resource) for lease in taken + retaken),
                *(node.renew(lease) for lease in lapsing),
            ]
            calls = [asyncio.create_task(answer_of(call)) for call in asked]
            await asyncio.sleep(0)
        for answer in await asyncio.gather(*calls):
            assert answer is None or answer is False or isinstance(answer, ClaimRefused), answer
        for lease in taken + retaken:
            await still_held(peer, lease)


def claiming(node: Node, resource: str) -> Callable[[], Awaitable[ClaimResult]]:
    return lambda: node.claim(resource)


async def still_held(node: Node, lease: Lease) -> None:
    """Nobody else has it: its holder keeps it, or takes it anew."""
    if not await at_last(lambda: node.renew(lease), lambda _: True):
        assert (await granted_at_last(lambda: node.claim(lease.resource))).epoch == lease.epoch + 1
