"""The protocol gate's view on a real broker that restarts, and its end when nobody claims."""

import asyncio
import itertools
from collections.abc import Generator
from pathlib import Path

import pytest
from lease_fault_worlds import Fleet, Node, at_last, fleet_on, granted_at_last
from structlog.testing import capture_logs

from crewlet.adapters.nats.jsapi import ask
from crewlet.ports.cells import Mark
from crewlet.seats.gate import IDLE_S
from crewlet.seats.lease import ClaimRefused, ClaimResult
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.clocks import SteppedClock

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


@pytest.mark.parametrize("down_s", [0.0, 1.5], ids=["short", "longer than the leases live"])
async def test_the_gates_view_is_level_again_after_the_broker_restarted(server: Server, down_s: float) -> None:
    async with fleet_on(server.urls, ttl_s=1.0) as fleet:
        new, old = await fleet.node("n:1"), await fleet.node("o:1", protocol=1)
        await granted_at_last(lambda: new.claim("seat:a", gated=True))
        server.kill()
        await asyncio.sleep(down_s)
        server.restart()
        with capture_logs() as logs:
            await granted_at_last(lambda: new.claim("seat:b", gated=True))
            await blocked(new, old, floor=1)
        events = [line["event"] for line in logs]
        assert "protocol_view_not_level" not in events, "the view was given up although the watch was repaired"


async def test_a_view_is_level_after_a_break_although_what_came_meanwhile_is_gone(server: Server) -> None:
    async with fleet_on(server.urls, ttl_s=1.0) as fleet:
        link = await fleet.link()
        node, peer = await fleet.node("n:1", link=link), await fleet.node("m:1")
        await node.store.protocol_floor()
        link.lose_everything()
        link.cut()
        await granted_at_last(lambda: peer.claim("seat:brief"))
        await fleet.lapse()
        with capture_logs() as logs:
            link.heal()
            link.cut()
            await granted_at_last(lambda: node.claim("seat:b", gated=True))
        events = [line["event"] for line in logs]
        assert "watch_repaired" in events
        assert "protocol_view_not_level" not in events, "it waited for a write that no watch can bring any more"


async def blocked(node: Node, by: Node, *, floor: int) -> None:
    """A claim is refused while an older node has a seat, which on a busy machine may lapse before the claim is made."""
    tries = itertools.count()

    async def claim() -> ClaimResult:
        await granted_at_last(lambda: by.claim("seat:old"))
        return await node.claim(f"seat:blocked{next(tries)}", gated=True)

    def is_blocked(answer: ClaimResult) -> bool:
        return isinstance(answer, ClaimRefused) and (answer.reason, answer.floor) == ("protocol", floor)

    await at_last(claim, is_blocked)


async def test_the_view_ends_a_minute_after_the_last_judgement_and_its_consumer_with_it(server: Server) -> None:
    async with fleet_on(server.urls) as fleet:
        clock = SteppedClock()
        node = await fleet.node("n:1", clock=clock)
        before = await watchers(fleet, node)
        await node.store.protocol_floor()
        assert await watchers(fleet, node) == before + 1
        clock.move(IDLE_S - 5)
        await node.store.protocol_floor()
        clock.move(IDLE_S - 5)
        assert await watchers(fleet, node) == before + 1, "each judgement keeps it for another minute"
        clock.move(10)
        await at_last(lambda: watchers(fleet, node), lambda count: count == before)
        assert await node.store.protocol_floor() is not None or isinstance(await node.leases.mark(), Mark)


async def watchers(fleet: Fleet, node: Node) -> int:
    """How many consumers of the leases somebody listens to."""
    listed = await ask(node.connection, f"CONSUMER.LIST.KV_{fleet.leases_spec.name}", {"offset": 0})
    return sum(1 for consumer in listed["consumers"] or () if consumer.get("push_bound"))
