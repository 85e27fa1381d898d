"""A node of `crewlet up` that dies, freezes or loses its store beside a peer: real processes, real programs.

The lease TTL is long where something must come before it, and short where it has to pass.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, runs
from process_kit import is_running

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
    assert "1 of 1 deliveries and" in supervised.said()


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
    assert "leases of alone:" in alone.said()


async def test_a_node_frozen_for_half_a_ttl_goes_on_and_one_frozen_for_longer_is_ended_with_its_programs_in_time(
    start: Start, tmp_path: Path
) -> None:
    ttl_s = 12.0
    (tmp_path / "desk.hold").touch()
    up = start("up", seats=("desk",), ttl_s=ttl_s)
    await up.until(lambda: up.holds("desk"), "it holds the seat")
    await up.send("desk", "long")
    await up.until(lambda: bool(runs(tmp_path, "desk")), "its program works")
    node = up.node_pid
    os.kill(node, signal.SIGSTOP)
    await asyncio.sleep(ttl_s / 2)
    os.kill(node, signal.SIGCONT)
    await asyncio.sleep(ttl_s / 2)  # two heartbeats more
    assert up.node_pid == node and is_running(node), up.said()[-3000:]
    assert [run.is_ended for run in runs(tmp_path, "desk")] == [False]

    os.kill(node, signal.SIGSTOP)
    await up.until(lambda: not is_running(node), "the frozen node was ended")
    told = "did not renew its leases in time and was killed (exit code 75)"
    await up.until(lambda: told in up.said(), "the parent says why")
    await up.until(lambda: len(runs(tmp_path, "desk")) == 2, "the mail is worked again")
    first, second = runs(tmp_path, "desk")
    # The program went on while its node was frozen, and was seen to end before anybody else began.
    assert first.epoch < second.epoch and first.last_at <= second.first_at
    (tmp_path / "desk.hold").unlink()


async def test_parent_and_node_frozen_together_for_two_ttls_do_not_act_after_the_thaw(
    start: Start, tmp_path: Path
) -> None:
    ttl_s = 6.0
    (tmp_path / "desk.hold").touch()
    up = start("up", seats=("desk",), ttl_s=ttl_s)
    await up.until(lambda: up.holds("desk"), "it holds the seat")
    node = up.node_pid
    for pid in (up.process.pid, node):
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(2 * ttl_s)
    for pid in (node, up.process.pid):
        os.kill(pid, signal.SIGCONT)
    await up.until(lambda: not is_running(node), "the thawed node is gone")

    async def is_back() -> bool:
        return up.node_pid != node and await up.holds("desk")

    await up.until(is_back, "another node holds the seat")


async def test_a_store_that_is_away_for_two_ttls_costs_the_turn_and_not_the_node(start: Start, tmp_path: Path) -> None:
    ttl_s = 6.0
    (tmp_path / "desk.hold").touch()
    up = start("up", seats=("desk",), ttl_s=ttl_s)
    await up.until(lambda: up.holds("desk"), "it holds the seat")
    await up.send("desk", "long")
    await up.until(lambda: bool(runs(tmp_path, "desk")), "its program works")
    node = up.node_pid
    os.kill(up.broker_pid, signal.SIGSTOP)
    await asyncio.sleep(2 * ttl_s)
    (run,) = runs(tmp_path, "desk")
    # It was ended when the lease ran out, a whole TTL ago.
    assert run.last_at < time.time() - ttl_s / 2 and not run.is_ended
    os.kill(up.broker_pid, signal.SIGCONT)
    assert up.node_pid == node and is_running(node), up.said()[-3000:]
    (tmp_path / "desk.hold").unlink()
    await up.until(lambda: any(run.is_ended for run in runs(tmp_path, "desk")), "the mail is finished")
    assert up.node_pid == node
