"""A node whose machine's clocks are put forward or back, or stood still while it slept."""

import asyncio
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, runs
from process_kit import is_running, with_site

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(240)]

TTL_S = 6.0
HOUR_S = 3600.0


class Clocked:
    """A node of `crewlet up` with a seat of its own name, whose clocks the test sets."""

    def __init__(self, folder: Path, name: str, coordination: str) -> None:
        self.name = name
        self._folder = folder
        self._skew = folder / f"{name}.skew"
        self._hold = folder / f"{name}.hold"
        self._hold.touch()
        env = {"SKEW": str(self._skew), **with_site("skew")}
        self.node = NodeProcess(
            folder, name, "", seats={name: {}}, labels={}, ttl_s=TTL_S, env=env, coordination=coordination
        )

    def set(self, *, wall_s: float, boot_s: float = 0.0) -> None:
        """So far ahead of the machine's own."""
        new = self._skew.with_suffix(".new")
        new.write_text(f"{wall_s} {boot_s}")
        new.rename(self._skew)

    async def work(self) -> int:
        """Have its program work; returns the node's process."""
        await self.node.until(lambda: self.node.holds(self.name), "it holds its seat")
        await self.node.send(self.name, f"{self.name}-mail")
        await self.node.until(lambda: bool(runs(self._folder, self.name)), "its program works")
        return self.node.node_pid

    async def goes_on(self, node: int) -> None:
        """Look on for a lease TTL: the same process, the same turn."""
        await asyncio.sleep(TTL_S)
        assert self.node.node_pid == node and is_running(node), self.node.said()[-3000:]
        assert [run.is_ended for run in runs(self._folder, self.name)] == [False]

    async def finish(self) -> None:
        self._hold.unlink()
        mail = f"{self.name}-mail"

        async def is_finished() -> bool:
            return await self.node.outcome(self.name, mail) == "delivered"

        await self.node.until(is_finished, "the mail is finished")


Make = Callable[[str, str], Clocked]


@pytest.fixture
def make(tmp_path: Path) -> Generator[Make]:
    made: list[Clocked] = []

    def one(name: str, coordination: str) -> Clocked:
        made.append(Clocked(tmp_path, name, coordination))
        return made[-1]

    yield one
    for each in made:
        each.node.end()


async def test_an_hours_step_of_the_wall_clock_either_way_costs_neither_seat_nor_turn(
    make: Make, tmp_path: Path
) -> None:
    async def step(one: Clocked) -> None:
        node = await one.work()
        for wall_s in (HOUR_S, -HOUR_S):
            one.set(wall_s=wall_s)
            await one.goes_on(node)
        await one.finish()
        assert "watchdog" not in one.node.said() and one.node.events("turn_fenced") == []

    fleet, alone = make("fleet", "embedded-kv"), make("alone", "local")
    # Its clock is right, and it may have the seat as soon as the store says that it is free.
    peer = asyncio.create_task(_peer(tmp_path, fleet))
    await asyncio.gather(step(fleet), step(alone))
    assert [len(runs(tmp_path, name)) for name in ("fleet", "alone")] == [1, 1]
    (await peer).end()


async def _peer(folder: Path, of: Clocked) -> NodeProcess:
    await of.node.until(lambda: of.node.holds(of.name), "it holds its seat")
    peer = NodeProcess(folder, "peer", of.node.broker_url, seats={of.name: {}}, labels={}, ttl_s=TTL_S)
    await peer.until(peer.holds, "the peer is up")
    return peer


async def test_a_machine_that_slept_for_an_hour_goes_on_where_it_was_under_local_leases_and_nowhere_else(
    make: Make, tmp_path: Path
) -> None:
    async def sleeps_alone(one: Clocked) -> None:
        node = await one.work()
        one.set(wall_s=HOUR_S, boot_s=HOUR_S)
        await one.goes_on(node)
        await one.finish()
        (run,) = runs(tmp_path, one.name)
        assert run.is_ended

    async def sleeps_in_a_fleet(one: Clocked) -> None:
        node = await one.work()
        one.set(wall_s=HOUR_S, boot_s=HOUR_S)
        await one.node.until(lambda: not is_running(node), "the node that overslept its leases is gone")
        await one.node.until(lambda: len(runs(tmp_path, one.name)) == 2, "its mail is worked again")
        first, second = runs(tmp_path, one.name)
        assert first.epoch < second.epoch and first.last_at <= second.first_at and not first.is_ended
        await one.finish()

    assert os.uname().sysname == "Linux" or pytest.skip("only Linux has a clock that counts suspend")
    await asyncio.gather(sleeps_alone(make("laptop", "local")), sleeps_in_a_fleet(make("server", "embedded-kv")))
