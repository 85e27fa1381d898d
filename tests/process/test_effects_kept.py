"""How often an effect is made when a node is drained, hands a seat over, or a person stops its turn, at each point of a
turn: real nodes, and a store outside that counts. What is observed is what the table of docs/effects.md says.
"""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from effects_rig import POINTS, UNIT, Outside, assert_as_documented, outside, scene
from fleet_kit import NodeProcess

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Outside]:
    with outside(tmp_path_factory.mktemp("store")) as running:
        yield running


async def test_a_node_that_is_drained(store: Outside, tmp_path: Path) -> None:
    async with scene("drain", tmp_path, store) as here:
        draining = asyncio.create_task(here.victim.drain())
        await here.victim.until(lambda: bool(here.victim.events("engine_draining")), "the drain has begun")
        here.let_go()
        assert await draining == 0
        await here.settle()
        await assert_as_documented(here)


async def test_a_seat_that_is_handed_over_to_a_node_that_joined(store: Outside, tmp_path: Path) -> None:
    async with scene("hand-over", tmp_path, store, rivals=True) as here:
        left = set(POINTS)
        while left:

            async def is_leaving() -> bool:
                health = await here.victim.health()
                leaving = left & (set(health.get("held_back", ())) | (set(POINTS) - set(health["seats"])))
                here.let_go(*leaving)
                left.difference_update(leaving)
                return bool(leaving)

            await here.victim.until(is_leaving, f"one of {left} is on its way")
        await here.heir.until(lambda: here.heir.holds(*POINTS), "the other node has one seat of each group")
        await here.settle()
        await assert_as_documented(here)


async def test_a_turn_that_a_person_stops(store: Outside, tmp_path: Path) -> None:
    async with scene("pause with `--stop-running`", tmp_path, store) as here:
        await _told(here.heir, "pause", "--unit", UNIT, "--stop-running", "--reason", "an audit")
        stopped = set(POINTS) - {"record", "ack"}
        await here.victim.until(
            lambda: {event["seat"] for event in here.victim.events("agent_turn_stopped")} == stopped, "they are stopped"
        )
        here.let_go()
        await _told(here.heir, "resume", "--unit", UNIT)
        await here.settle()
        await assert_as_documented(here)


async def _told(node: NodeProcess, *command: str) -> None:
    """Give a node a command, as a person does."""
    argv = [sys.executable, "-m", "crewlet.cli", "seat", *command]
    run = await asyncio.to_thread(
        subprocess.run, argv, check=False, cwd=node.company.parent, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
