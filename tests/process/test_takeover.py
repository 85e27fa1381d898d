"""A node of `crewlet up` that dies, beside a peer or alone: real processes, real programs."""

import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, runs

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

LONG_TTL_S = 120.0
"""Longer than any wait here: what comes in time came by being given back."""

Start = Callable[..., NodeProcess]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    nodes: list[NodeProcess] = []

    def started(node_id: str, url: str = "", *, seats: tuple[str, ...], ttl_s: float) -> NodeProcess:
        node = NodeProcess(tmp_path, node_id, url, seats={name: {} for name in seats}, labels={}, ttl_s=ttl_s)
        nodes.append(node)
        return node

    yield started
    for node in nodes:
        node.end()


async def test_mail_in_a_killed_nodes_hands_and_its_seats_are_with_a_peer_long_before_the_ttl(
    start: Start, tmp_path: Path
) -> None:
    hold = tmp_path / "desk.hold"
    hold.touch()
    supervised = start("supervised", seats=("desk",), ttl_s=LONG_TTL_S)
    await supervised.until(lambda: supervised.holds("desk"), "it holds the seat")
    peer = start("peer", supervised.broker_url, seats=("desk",), ttl_s=LONG_TTL_S)
    await peer.until(peer.holds, "the peer is up")
    await supervised.send("desk", "in-hand")
    await supervised.until(lambda: bool(runs(tmp_path, "desk")), "its program works on the mail")

    os.kill(supervised.node_pid, signal.SIGKILL)
    await peer.until(lambda: len(runs(tmp_path, "desk")) == 2, "the mail is worked again")
    hold.unlink()
    first, second = runs(tmp_path, "desk")
    assert (first.node, first.triggers, second.triggers) == ("supervised", second.triggers, first.triggers)
    assert second.epoch > first.epoch
    assert first.last_at <= second.first_at
    await supervised.until(lambda: "1 of 1 deliveries and" in supervised.said(), "its parent says what it gave back")


async def test_a_lone_node_is_back_with_its_seats_long_before_its_former_leases_lapse(start: Start) -> None:
    alone = start("alone", seats=("one", "two"), ttl_s=LONG_TTL_S)
    await alone.until(lambda: alone.holds("one", "two"), "it holds its seats")
    killed = alone.node_pid
    os.kill(killed, signal.SIGKILL)

    async def is_back() -> bool:
        return alone.node_pid != killed and await alone.holds("one", "two")

    await alone.until(is_back, "the same node holds its seats again")
    health = await alone.health()
    assert health["has_presence"]
    await alone.until(lambda: "leases of alone:" in alone.said(), "its parent says what it gave back")
