"""Half a lease TTL without the store, or frozen whole, costs nothing; a whole one costs the turn, and no double run."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, Run, runs
from process_kit import is_running

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(240)]

LONG_TTL_S, SHORT_TTL_S = 12.0, 6.0
"""Long where it must not pass: half of it has to end well before what is left of a lease that was not renewed since."""

Start = Callable[[str, float], NodeProcess]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    nodes: list[NodeProcess] = []

    def started(name: str, ttl_s: float) -> NodeProcess:
        (tmp_path / f"{name}.hold").touch()
        nodes.append(NodeProcess(tmp_path, name, "", seats={name: {}}, labels={}, ttl_s=ttl_s))
        return nodes[-1]

    yield started
    for node in nodes:
        node.end()


async def at_work(up: NodeProcess, folder: Path) -> int:
    """Wait until its program works on mail; returns the node's process."""
    await up.until(lambda: up.holds(up.id), "it holds its seat")
    await up.send(up.id, f"{up.id}-mail")
    await up.until(lambda: bool(runs(folder, up.id)), "its program works")
    return up.node_pid


async def stopped(pids: list[int], for_s: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(for_s)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


async def finished(up: NodeProcess, folder: Path) -> list[Run]:
    """Let the program end; returns its runs."""
    (folder / f"{up.id}.hold").unlink()
    await up.until(lambda: any(run.is_ended for run in runs(folder, up.id)), "the mail is finished")
    return runs(folder, up.id)


async def test_half_a_ttl_without_the_store_or_of_node_and_parent_frozen_costs_nothing(
    start: Start, tmp_path: Path
) -> None:
    async def check(up: NodeProcess, *, of_store: bool) -> None:
        node = await at_work(up, tmp_path)
        await stopped([up.broker_pid] if of_store else [up.process.pid, node], LONG_TTL_S / 2)
        await asyncio.sleep(LONG_TTL_S / 2)  # a heartbeat more, and the end of the lease there was before
        assert up.node_pid == node and is_running(node), up.said()[-3000:]
        (run,) = await finished(up, tmp_path)
        assert run.is_ended

    await asyncio.gather(
        check(start("store", LONG_TTL_S), of_store=True), check(start("both", LONG_TTL_S), of_store=False)
    )


async def test_a_ttl_without_the_store_ends_the_turn_in_time_and_not_the_node(start: Start, tmp_path: Path) -> None:
    up = start("store", SHORT_TTL_S)
    node = await at_work(up, tmp_path)
    frozen_at = runs(tmp_path, "store")[0].last_at
    await stopped([up.broker_pid], SHORT_TTL_S + 0.5)
    await up.until(lambda: len(runs(tmp_path, "store")) == 2, "the mail is worked again")
    cut, _ = runs(tmp_path, "store")
    assert up.node_pid == node and is_running(node)
    # No renewal was answered since, so the lease was good for no longer than this.
    assert not cut.is_ended and cut.last_at < frozen_at + SHORT_TTL_S
    cut, whole = await finished(up, tmp_path)
    assert cut.last_at <= whole.first_at and cut.epoch < whole.epoch


async def test_node_and_parent_frozen_for_a_ttl_end_their_program_at_the_thaw_and_run_the_mail_again_after_it(
    start: Start, tmp_path: Path
) -> None:
    up = start("both", SHORT_TTL_S)
    node = await at_work(up, tmp_path)
    await stopped([up.process.pid, node], SHORT_TTL_S + 0.5)
    await up.until(lambda: not is_running(node), "the node that froze past its lease is gone")
    await up.until(lambda: len(runs(tmp_path, "both")) == 2, "the mail is worked again")
    cut, whole = await finished(up, tmp_path)
    assert not cut.is_ended and cut.last_at <= whole.first_at and cut.epoch < whole.epoch
