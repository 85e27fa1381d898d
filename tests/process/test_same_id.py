"""A node that is back under its id while what its former incarnation had is still being given back."""

import asyncio
import os
import signal
import time
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from fleet_kit import NodeProcess, runs

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(240)]

TTL_S = 6.0


@pytest.fixture
def up(tmp_path: Path) -> Generator[NodeProcess]:
    (tmp_path / "desk.hold").touch()
    node = NodeProcess(tmp_path, "again", "", seats={"desk": {}}, labels={}, ttl_s=TTL_S)
    yield node
    node.end()


def helper_frozen_as_it_begins(up: NodeProcess) -> psutil.Process | None:
    """The process that gives back, stopped before it could; None when it was over sooner than it was seen."""
    parent, told = psutil.Process(up.process.pid), up.said().count("given back within")
    until = time.monotonic() + 30
    while up.said().count("given back within") == told:
        assert time.monotonic() < until, up.said()[-2000:]
        for child in parent.children():
            try:
                if "crewlet.supervisor.giveback" in child.cmdline():
                    child.suspend()
                    return child
            except psutil.NoSuchProcess:
                continue
    return None


async def test_a_give_back_that_is_late_takes_nothing_from_the_next_incarnation_of_the_same_node(
    up: NodeProcess, tmp_path: Path
) -> None:
    await up.until(lambda: up.holds("desk"), "it holds its seat")
    await up.send("desk", "mail")
    helper = None
    for number in range(5):
        await up.until(lambda number=number: len(runs(tmp_path, "desk")) > number, "its program works")
        node = up.node_pid
        os.kill(node, signal.SIGKILL)
        helper = await asyncio.to_thread(helper_frozen_as_it_begins, up)
        if helper is not None:
            break
        await up.until(lambda node=node: up.node_pid != node and up.holds("desk"), "it is back")
    assert helper is not None

    count = len(runs(tmp_path, "desk"))
    await up.until(lambda: len(runs(tmp_path, "desk")) > count, "the next incarnation has seat and mail")
    held = (await up.health())["seats"]
    if not helper.is_running():
        pytest.skip("this machine was so busy that the parent had given the helper up")
    helper.resume()
    await asyncio.to_thread(helper.wait, 30)
    assert "its leases had run out" in up.said() or "the rest comes back by itself" in up.said(), up.said()[-3000:]
    await asyncio.sleep(TTL_S)  # two heartbeats, and a sweep: whatever had been taken would show
    assert (await up.health())["seats"] == held and up.events("seat_lost") == []
    (tmp_path / "desk.hold").unlink()
    await up.until(lambda: runs(tmp_path, "desk")[-1].is_ended, "the mail is finished")
    made = runs(tmp_path, "desk")
    assert len(made) == count + 1 and [run.is_ended for run in made] == [False] * count + [True]
    assert all(one.last_at <= other.first_at for one, other in pairwise(made))
