"""A node that is back under its id while what its former incarnation had is still being given back."""

import asyncio
import os
import signal
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from fleet_kit import NodeProcess, runs
from process_kit import with_site

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(400)]

TTL_S = 6.0
TRIES = 5
TOLD = {
    "begin": "its leases had run out",
    "mail": "1 of 1 deliveries and 0 leases",
    "leases": "1 of 1 deliveries and",  # whoever has them now, they are not the dead node's any more
}
"""Where the helper stands still until it is too late, and what it says of it."""


@pytest.fixture
def ups(tmp_path: Path) -> Generator[dict[str, NodeProcess]]:
    """One `up` for each point, with a seat of the same name whose program works until its `.hold` is gone."""
    made: dict[str, NodeProcess] = {}
    for point in TOLD:
        (tmp_path / f"{point}.hold").touch()
        env = {"STAND_AT": point, **with_site("late")}
        made[point] = NodeProcess(tmp_path, point, "", seats={point: {}}, labels={}, ttl_s=TTL_S, env=env)
    yield made
    for up in made.values():
        up.end()


def standing(up: NodeProcess) -> psutil.Process | None:
    """The process that gives back, once it stands still."""
    for child in psutil.Process(up.process.pid).children():
        try:
            if child.status() == psutil.STATUS_STOPPED and "crewlet.supervisor.giveback" in child.cmdline():
                return child
        except psutil.NoSuchProcess:
            continue
    return None


async def overtaken(up: NodeProcess, folder: Path) -> psutil.Process:
    """Kill the node; returns the process that gives back, standing still, once the next incarnation has seat and mail.

    A parent gives a helper up after 20 s, and a busy machine may need them for that incarnation: then once more.
    """
    for _ in range(TRIES):
        count = len(runs(folder, up.id))
        os.kill(up.node_pid, signal.SIGKILL)
        await up.until(lambda: standing(up) is not None, "its helper stands still")
        helper = standing(up)
        await up.until(lambda count=count: len(runs(folder, up.id)) > count, "the next one has seat and mail")
        if helper is not None and helper.is_running():
            return helper
    raise AssertionError(f"the helper was given up {TRIES} times\n{up.said()[-3000:]}")


async def test_a_give_back_that_is_late_at_any_point_takes_nothing_from_the_next_incarnation_of_the_same_node(
    ups: dict[str, NodeProcess], tmp_path: Path
) -> None:
    async def check(point: str, up: NodeProcess) -> None:
        await up.until(lambda: up.holds(point), "it holds its seat")
        await up.send(point, "mail")
        await up.until(lambda: len(runs(tmp_path, point)) == 1, "its program works")
        helper = await overtaken(up, tmp_path)
        count, (node, lost) = len(runs(tmp_path, point)), (up.node_pid, up.events("seat_lost"))
        helper.resume()
        await asyncio.to_thread(helper.wait, 30)
        assert TOLD[point] in up.said(), up.said()[-3000:]
        await asyncio.sleep(TTL_S)  # two heartbeats, and a sweep: whatever had been taken would show
        assert up.node_pid == node and await up.holds(point) and up.events("seat_lost") == lost
        (tmp_path / f"{point}.hold").unlink()
        await up.until(lambda: runs(tmp_path, point)[-1].is_ended, "the mail is finished")
        made = runs(tmp_path, point)
        assert [run.is_ended for run in made] == [False] * (count - 1) + [True]
        assert all(one.last_at <= other.first_at for one, other in pairwise(made))

    await asyncio.gather(*(check(point, up) for point, up in ups.items()))
