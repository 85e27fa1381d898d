"""The store, a node, or a node with its parent stands still for a half, one and two lease TTLs, while programs work.

A half costs nothing. A whole one costs the turn: without a store the node itself goes on; and whoever runs the mail
again begins after the end of the program that was cut. Nodes of a row stand still side by side.
"""

import asyncio
import os
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, runs
from process_kit import is_running

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

TTL_S = 8.0
BIT_S = 0.5
WHAT = ("store", "node", "both")
"""What is stopped. Under `node` and `both` the programs of the seat go on, which `both` leaves to nobody to end."""


@dataclass(frozen=True, slots=True)
class Outage:
    """One that is over.

    Attributes:
        node: its process before.
        at: when it began, by the clock of the runs' lines.
    """

    up: NodeProcess
    node: int
    at: float

    @property
    def goes_on(self) -> bool:
        return self.up.node_pid == self.node and is_running(self.node)


@pytest.fixture
def ups(tmp_path: Path) -> Generator[list[NodeProcess]]:
    made: list[NodeProcess] = []
    yield made
    for up in made:
        up.end()


async def at_work(ups: list[NodeProcess], folder: Path, names: tuple[str, ...]) -> None:
    """Start an `up` for each name, with a seat of that name, and wait until all their programs work."""
    for name in names:
        (folder / f"{name}.hold").touch()
        ups.append(NodeProcess(folder, name, "", seats={name: {}}, labels={}, ttl_s=TTL_S))
    for up in ups:
        await up.until(lambda up=up: up.holds(up.id), "it holds its seat")
        await up.send(up.id, f"{up.id}-mail")
    for up in ups:
        await up.until(lambda up=up: bool(runs(folder, up.id)), "its program works")


async def outage(up: NodeProcess, for_s: float) -> Outage:
    """Stop what the name of the `up` begins with, for so long from a renewal of its seat's lease on."""
    node = up.node_pid
    pids = {"store": [up.broker_pid], "node": [node], "both": [up.process.pid, node]}[up.id.partition("-")[0]]

    async def is_renewed() -> bool:
        return await up.lease_left_s(up.id) > 0.9 * TTL_S

    await up.until(is_renewed, "its lease was just renewed")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    begun = Outage(up, node, time.time())
    await asyncio.sleep(for_s)
    for pid in reversed(pids):
        if is_running(pid):
            os.kill(pid, signal.SIGCONT)
    return begun


async def finished(up: NodeProcess, folder: Path) -> None:
    """Let the program end, and its mail be finished."""
    (folder / f"{up.id}.hold").unlink()
    await up.until(lambda: any(run.is_ended for run in runs(folder, up.id)), "the mail is finished")


async def test_half_a_ttl_without_the_store_or_of_the_node_with_or_without_its_parent_costs_nothing(
    ups: list[NodeProcess], tmp_path: Path
) -> None:
    await at_work(ups, tmp_path, WHAT)

    async def check(up: NodeProcess) -> None:
        half = await outage(up, TTL_S / 2)
        await asyncio.sleep(TTL_S / 2 + BIT_S)  # heartbeats more, and the end of the lease there was before
        assert half.goes_on, up.said()[-3000:]
        await finished(up, tmp_path)
        assert [run.is_ended for run in runs(tmp_path, up.id)] == [True]

    await asyncio.gather(*map(check, ups))


async def test_one_and_two_ttls_cost_the_turn_whose_mail_runs_again_when_its_program_has_ended(
    ups: list[NodeProcess], tmp_path: Path
) -> None:
    names = tuple(f"{what}-{ttls}" for what in WHAT for ttls in (1, 2))
    await at_work(ups, tmp_path, names)

    async def check(up: NodeProcess) -> None:
        what, _, ttls = up.id.partition("-")
        it = await outage(up, int(ttls) * TTL_S + BIT_S)
        if what == "store":
            assert it.goes_on, up.said()[-3000:]
        elif (what, ttls) != ("both", "1"):  # there the node may be too late for its parent, or have ended its turn
            await up.until(lambda: not is_running(it.node), "the node that froze past its lease is gone")
        if what == "node":
            told = "did not renew its leases in time and was killed (exit code 75)"
            await up.until(lambda: told in up.said(), "the parent says why")
        await up.until(lambda: len(runs(tmp_path, up.id)) == 2, "the mail is worked again")
        cut, whole = runs(tmp_path, up.id)
        assert cut.epoch < whole.epoch and cut.last_at <= whole.first_at and not cut.is_ended
        if what != "both":  # there nobody is left to end it before the thaw
            # No renewal was answered since, so the lease was good for no longer; a busy parent may be a little late.
            assert cut.last_at < it.at + TTL_S * (1.0 if what == "store" else 1.5), up.id
        await finished(up, tmp_path)
        assert what != "store" or it.goes_on

    await asyncio.gather(*map(check, ups))
