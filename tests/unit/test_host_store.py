"""Whole hosts over the real lease store on in-process cells, in virtual time."""

import asyncio
from collections.abc import Sequence

import pytest
from host_rig import ALL_ROLES, Counter, Instants, RecordingHooks, seats_of

from crewlet.adapters.local.cells import LocalCells
from crewlet.company.model import Placement, Seat
from crewlet.ports.cells import CellStore
from crewlet.seats.host import HostConfig, SeatHost
from crewlet.seats.lease import SEAT
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

TTL_S = 30.0


class Member:
    """One node: a store of its own over the shared cells, hooks, and a host."""

    def __init__(self, node_id: str, leases: LeaseStore, seats: Sequence[Seat], clock: VirtualClock) -> None:
        self.leases = leases
        self.hooks = RecordingHooks()
        self.deadline = Instants()
        config = HostConfig(node_id=node_id, owner=f"{node_id}:{clock.elapsed():g}", roles=ALL_ROLES, labels={})
        self.host = SeatHost(
            config, leases, lambda: seats, self.hooks, clock=clock, entropy=Counter(), deadline=self.deadline
        )

    async def crash(self) -> None:
        """End every task where it stands, and give nothing back."""
        await self.host._context.tasks.stop()  # pyright: ignore[reportPrivateUsage]
        await self.leases.stop()

    async def stop(self) -> None:
        await self.host.stop()
        await self.leases.stop()


async def member(node_id: str, cells: CellStore, seats: Sequence[Seat], *, rate: float = 1.0) -> Member:
    clock = VirtualClock(rate=rate)
    leases, epochs = await cells.open(leases_bucket(TTL_S)), await cells.open(EPOCHS_BUCKET)
    return Member(node_id, LeaseStore(leases, epochs, clock=clock, entropy=Counter()), seats, clock)


def spread(members: Sequence[Member]) -> list[int]:
    return [len(each.host.held()) for each in members]


@in_virtual_time
async def test_two_nodes_share_the_seats_and_a_drain_moves_them_over_within_a_pass() -> None:
    cells, seats = LocalCells(VirtualClock()), seats_of(*"abcdef")
    a, b = await member("a", cells, seats), await member("b", cells, seats)
    await a.host.start()
    await b.host.start()
    await asyncio.sleep(20)
    assert spread([a, b]) == [3, 3]
    assert a.host.held().keys().isdisjoint(b.host.held())
    await a.host.drain()
    await until(lambda: spread([a, b]) == [0, 6], within_s=11)
    await a.stop()
    assert {lease.epoch for lease in await b.leases.list_live(SEAT)} <= {1, 2, 3}
    await b.stop()
    assert await b.leases.list_live(SEAT) == []


@in_virtual_time
async def test_a_crashed_nodes_seats_run_elsewhere_after_a_ttl_at_a_higher_epoch() -> None:
    cells, seats = LocalCells(VirtualClock()), seats_of(*"abcd")
    a, b = await member("a", cells, seats), await member("b", cells, seats)
    await a.host.start()
    await b.host.start()
    await asyncio.sleep(20)
    mine = dict(a.host.held())
    assert spread([a, b]) == [2, 2]
    await a.crash()
    await asyncio.sleep(TTL_S - 9)
    assert spread([b]) == [2]
    await until(lambda: spread([b]) == [4], within_s=9 + 6)
    for handle, term in mine.items():
        assert b.host.held()[handle].epoch > term.epoch
    await b.stop()


@in_virtual_time
async def test_a_node_that_joins_gets_its_share_and_one_with_a_stuck_seat_is_charged_for_it() -> None:
    cells, seats = LocalCells(VirtualClock()), seats_of(*"abcdef")
    a = await member("a", cells, seats)
    await a.host.start()
    await asyncio.sleep(10)
    assert spread([a]) == [6]
    a.hooks.fails_release.add("a")
    b, c = await member("b", cells, seats), await member("c", cells, seats)
    await b.host.start()
    await c.host.start()
    await asyncio.sleep(30)
    assert list(a.host.unproven_seconds()) == ["a"]
    assert spread([a, b, c]) == [1, 2, 2]
    a.hooks.fails_release.clear()
    await until(lambda: spread([a, b, c]) == [2, 2, 2], within_s=20)
    assert not a.host.unproven_seconds()
    for each in (a, b, c):
        await each.stop()


@pytest.mark.proves("SW-31")
@in_virtual_time
async def test_each_pod_holds_exactly_the_seat_pinned_to_it() -> None:
    cells = LocalCells(VirtualClock())
    seats = [Seat(f"s{n}", placement=Placement(node=f"p{n}")) for n in range(3)]
    pods = [await member(f"p{n}", cells, seats) for n in range(3)]
    for pod in pods:
        await pod.host.start()
    await asyncio.sleep(11)
    assert [list(pod.host.held()) for pod in pods] == [["s0"], ["s1"], ["s2"]]
    for pod in pods:
        await pod.stop()


@in_virtual_time
async def test_a_restart_under_the_same_node_id_gets_its_seats_back_by_preference() -> None:
    cells, seats = LocalCells(VirtualClock()), seats_of(*"abcd")
    a, b = await member("a", cells, seats), await member("b", cells, seats)
    await a.host.start()
    await b.host.start()
    await asyncio.sleep(20)
    before = sorted(a.host.held())
    assert len(before) == 2
    await a.crash()
    again = await member("a", cells, seats)
    await again.host.start()
    await until(lambda: sorted(again.host.held()) == before, within_s=TTL_S + 6)
    assert spread([again, b]) == [2, 2]
    for each in (again, b):
        await each.stop()


@in_virtual_time
async def test_clocks_one_per_cent_apart_never_make_two_holders() -> None:
    cells, seats = LocalCells(VirtualClock()), seats_of(*"abcd")
    a, b = await member("a", cells, seats, rate=0.99), await member("b", cells, seats, rate=1.01)
    await a.host.start()
    await b.host.start()
    for _ in range(600):
        await asyncio.sleep(1)
        assert a.host.held().keys().isdisjoint(b.host.held())
    assert spread([a, b]) == [2, 2]
    assert not a.hooks.of("stop") and not b.hooks.of("stop")
    for each in (a, b):
        await each.stop()
