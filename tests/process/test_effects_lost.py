"""How often an effect is made when its node dies, freezes, or loses its lease, at each point of a turn: real nodes, and
a store outside that counts. What is observed is what the table of docs/effects.md says.
"""

import asyncio
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from effects_rig import POINTS, Outside, assert_as_documented, outside, scene

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Outside]:
    with outside(tmp_path_factory.mktemp("store")) as running:
        yield running


async def test_a_node_that_is_killed(store: Outside, tmp_path: Path) -> None:
    async with scene("SIGKILL", tmp_path, store) as here:
        here.victim.end()
        here.let_go()
        await here.settle()
        await assert_as_documented(here)


async def test_a_node_that_is_frozen_past_its_leases(store: Outside, tmp_path: Path) -> None:
    async with scene("frozen past its lease", tmp_path, store) as here:
        here.victim.process.send_signal(signal.SIGSTOP)
        here.let_go()
        await here.settle()
        here.victim.process.send_signal(signal.SIGCONT)
        # What its calls and its model answered meanwhile lies in its sockets, and it dies before it reads it.
        assert await asyncio.to_thread(here.victim.process.wait, 30) < 0
        await assert_as_documented(here)


async def test_a_node_that_cannot_renew_its_leases(store: Outside, tmp_path: Path) -> None:
    async with scene("cut off from its lease", tmp_path, store) as here:
        here.is_cut_off = True
        here.let_go("record")  # the ledger can be reached
        await here.heir.until(lambda: here.heir.holds(*POINTS), "the other node has the seats")
        fenced = set(POINTS) - {"record", "ack"}
        await here.victim.until(
            lambda: {event["seat"] for event in here.victim.events("turn_fenced")} == fenced, "their turns are fenced"
        )
        here.let_go()
        await here.settle()
        assert here.victim.process.poll() is None
        await assert_as_documented(here)
