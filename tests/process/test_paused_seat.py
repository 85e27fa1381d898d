"""A seat that a person pauses while it moves between real nodes on a real broker."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import NodeProcess, runs

from crewlet.testing.brokers import Server, one_server

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SEATS = {"work": {"w": ""}}
TTL_S = 6.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with one_server(tmp_path_factory.mktemp("broker")) as running:
        yield running


def crewlet(node: NodeProcess, *arguments: str) -> Any:
    """A command against a node, as a person gives it; what it prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "crewlet.cli", *arguments, "-o", "json"],
        check=True,
        cwd=node.company.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(ran.stdout)


async def asked(node: NodeProcess, *arguments: str) -> Any:
    return await asyncio.to_thread(crewlet, node, *arguments)


@pytest.mark.proves("HO-01")
async def test_a_seat_paused_in_the_middle_of_a_hand_over_is_stopped_there_and_held_where_it_goes(
    server: Server, tmp_path: Path
) -> None:
    hold = tmp_path / "work.hold"
    hold.touch()
    nodes: list[NodeProcess] = []
    try:
        for node_id in ("n1", "n2"):
            node = NodeProcess(tmp_path, node_id, server.url, seats=SEATS, labels={"w": ""}, ttl_s=TTL_S)
            nodes.append(node)
            await node.until(lambda node=node: _is_up(node), "it is up")
            if node_id == "n1":
                await node.until(lambda node=node: node.holds("work"), "the first node has the seat")
        first, second = nodes
        await second.send("work", "long")
        await first.until(lambda: bool(runs(tmp_path, "work")), "the long turn runs")
        draining = asyncio.create_task(first.drain())
        await first.until(lambda: bool(first.events("engine_draining")), "the hand-over has begun")
        assert not draining.done()

        paused = await asked(second, "seat", "pause", "work", "--stop-running", "--reason", "wrong customer")
        assert paused["is_changed"] and paused["pause"]["stop_running"]
        assert await draining == 0
        await second.until(lambda: second.holds("work"), "the seat has moved")
        for mail_id in ("w1", "w2"):
            await second.send("work", mail_id)
        await second.until(lambda: _holds_back(second, 2), "both lie there, and it says why")
        assert await second.outcome("work", "long") == "stopped"
        assert [run.triggers for run in runs(tmp_path, "work")] == [("long",)]

        hold.unlink()
        (listed,) = await asked(second, "seat", "list")
        assert (listed["node"], listed["pause"]["reason"], listed["pause"]["messages_held"]) == (
            "n2",
            "wrong customer",
            2,
        )
        assert (await asked(second, "seat", "resume", "work"))["is_changed"]
        for mail_id in ("w1", "w2"):
            await second.until(lambda mail_id=mail_id: _is_delivered(second, mail_id), "it runs once resumed")
        assert (await asked(second, "seat", "list"))[0].get("pause") is None
        assert await second.drain() == 0
    finally:
        for node in nodes:
            node.end()

    long, *rest = runs(tmp_path, "work")
    assert (long.node, long.is_ended) == ("n1", False)
    assert [run.node for run in rest] == ["n2"] * len(rest) and all(run.is_ended for run in rest)
    assert sorted(trigger for run in rest for trigger in run.triggers) == ["w1", "w2"]
    (stopped,) = first.events("agent_turn_stopped")
    (attached,) = second.events("inbox_attached")
    assert "wrong customer" in stopped["reason"] and attached["at"] > stopped["at"]


async def _is_up(node: NodeProcess) -> bool:
    return (await node.health())["status"] == "ok"


async def _holds_back(node: NodeProcess, messages: int) -> bool:
    if (await node.health()).get("held_back") != {"work": "seat_paused"}:
        return False
    (seat,) = await asked(node, "seat", "list")
    return seat["pause"]["messages_held"] == messages


async def _is_delivered(node: NodeProcess, mail_id: str) -> bool:
    return await node.outcome("work", mail_id) == "delivered"
