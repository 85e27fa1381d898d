"""SIGKILL of parent, node and broker in every order, on a node that works: nothing is left, and all of it is back."""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import psutil
import pytest
from fleet_kit import BOUND_S, NodeProcess, runs

pytestmark = [
    pytest.mark.long,
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="what a killed parent leaves is ended on Linux only"),
]

TTL_S = 6.0
ORDERS = list(itertools.permutations(("parent", "node", "broker")))


@pytest.fixture
def ups(tmp_path: Path) -> Generator[dict[str, NodeProcess]]:
    """One `up` for each order, with a seat of the same name whose program works until its `.hold` is gone."""
    made: dict[str, NodeProcess] = {}
    for order in map("-".join, ORDERS):
        (tmp_path / f"{order}.hold").touch()
        made[order] = NodeProcess(tmp_path, order, "", seats={order: {}}, labels={}, ttl_s=TTL_S)
    yield made
    for up in made.values():
        up.end()


def processes_of(folder: Path, order: str) -> list[psutil.Process]:
    """All that came of one `up`: what works in its folder, and its seat's program."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = " ".join(process.cmdline())
            is_ours = process.cwd() == str(folder / order) or f"{folder / order}/" in words
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.asynccontextmanager
async def servers_counted() -> AsyncGenerator[dict[bytes, int]]:
    """By configuration, the most servers that were seen to run on it at once."""
    most: dict[bytes, int] = {}

    async def look() -> None:
        while True:
            now = Counter(await asyncio.to_thread(_served))
            most.update({config: max(count, most.get(config, 0)) for config, count in now.items()})
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    try:
        yield most
    finally:
        looking.cancel()


def _served() -> list[bytes]:
    found: list[bytes] = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"nats-server"):
                found += [word for word in words if word.endswith(b".conf")]
    return found


async def are_gone(folder: Path, order: str) -> None:
    """Wait until nothing of one `up` is left."""
    async with asyncio.timeout(BOUND_S):
        while await asyncio.to_thread(processes_of, folder, order):
            await asyncio.sleep(0.2)


async def kill_in(order: str, up: NodeProcess) -> None:
    pids = {"parent": up.process.pid, "node": up.node_pid, "broker": up.broker_pid}
    for name in order.split("-"):
        with contextlib.suppress(ProcessLookupError):  # it went with the one before
            os.kill(pids[name], signal.SIGKILL)
    await asyncio.to_thread(up.process.wait, BOUND_S)


async def test_whatever_is_killed_first_nothing_is_left_no_store_is_served_twice_and_the_mail_is_worked(
    ups: dict[str, NodeProcess], tmp_path: Path
) -> None:
    async def check(order: str, up: NodeProcess) -> None:
        await up.until(lambda: up.holds(order), "it holds its seat")
        await up.send(order, f"{order}-mail")
        await up.until(lambda: bool(runs(tmp_path, order)), "its program works")
        await kill_in(order, up)
        await are_gone(tmp_path, order)
        up.restart()
        await up.until(lambda: len(runs(tmp_path, order)) == 2, "the mail is worked again")
        (tmp_path / f"{order}.hold").unlink()
        await up.until(lambda: runs(tmp_path, order)[-1].is_ended, "and to its end")
        assert await up.drain() == 0
        cut, whole = runs(tmp_path, order)
        assert not cut.is_ended and cut.last_at <= whole.first_at and cut.epoch < whole.epoch
        assert cut.triggers == whole.triggers == (f"{order}-mail",)
        await are_gone(tmp_path, order)

    async with servers_counted() as most:
        await asyncio.gather(*(check(order, up) for order, up in ups.items()))
    configs = [str(tmp_path / order / ".crewlet" / "broker" / "nats-server.conf").encode() for order in ups]
    assert [most[config] for config in configs] == [1] * len(ups)
