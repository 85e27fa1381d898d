"""A release is heard: what peers do with the news, and what it costs when a hundred of them hear it."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
import structlog
from host_rig import ALL_ROLES, RecordingHooks, peer_row, rig, seats_of
from node_rig import Fleet

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.local.signals import LocalSignals
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import Seat
from crewlet.node.freednews import NAMED_AT_ONCE, SIGNAL, FreedNews
from crewlet.ports.cells import Cells
from crewlet.ports.deadline import NoDeadline
from crewlet.seats import news
from crewlet.seats.freed import MOST_LOST
from crewlet.seats.host import Freed, HostConfig, SeatHost
from crewlet.seats.lease import ClaimResult
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.seats.noderow import NodeRow
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

HOSTS = 100


def told_by(node: str, *handles: str, standing: news.Standing = "stays", owner: str = "") -> Freed:
    return Freed(owner or f"{node}:1", node, handles, standing)


# What the news is


def test_news_is_read_as_it_was_written_and_what_a_later_build_adds_is_left_out() -> None:
    freed = told_by("x", "ann", "bob", standing="gone")
    assert news.decode(news.encode(freed)) == freed
    assert news.decode(b'{"owner":"x:1","node":"x","seats":["ann"],"later":1}') == told_by("x", "ann")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"{}", b'{"owner":"x","node":"x","seats":"ann"}', b'{"owner":1,"node":"x","seats":[]}'],
)
def test_what_is_no_news_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        news.decode(data)


@pytest.mark.parametrize(
    ("standing", "places"),
    [("stays", {"x": True, "y": True}), ("withdrawn", {"x": False, "y": True}), ("gone", {"y": True})],
)
def test_a_peer_that_leaves_or_withdraws_is_no_longer_shared_over(
    standing: news.Standing, places: dict[str, bool]
) -> None:
    rows = [NodeRow("x"), NodeRow("y")]
    after = news.rows_after(rows, told_by("x", "ann", standing=standing))
    assert {row.node_id: row.places_seats for row in after} == places


@in_virtual_time
async def test_more_seats_than_one_message_may_name_go_in_several() -> None:
    signals, heard = LocalSignals(), list[Freed]()
    freed_news = FreedNews(signals)
    await freed_news.listen(heard.append)
    handles = [f"seat-{number:059}" for number in range(NAMED_AT_ONCE + 1)]
    freed_news.tell(told_by("x", *handles, standing="gone"))
    await asyncio.sleep(0.01)
    assert [len(freed.seats) for freed in heard] == [NAMED_AT_ONCE, 1]
    assert [seat for freed in heard for seat in freed.seats] == handles
    assert {freed.standing for freed in heard} == {"gone"}


# What a host does with it


@in_virtual_time
async def test_claims_for_news_that_come_side_by_side_share_one_allowance() -> None:
    handles = [f"s{n:02}" for n in range(30)]
    r = rig(seats_of(*handles), sweep_interval_s=60.0, ttl_s=600.0)
    await r.host.start()
    r.leases.delays["claim"] = 0.5
    r.host.hear_freed(told_by("x", *handles[:15]))
    await asyncio.sleep(0.2)
    r.host.hear_freed(told_by("x", *handles[15:]))
    r.host.request_sweep()
    await asyncio.sleep(20)
    assert len(r.host.held()) == 4 + 4
    await r.host.stop()


@in_virtual_time
async def test_a_claim_that_is_lost_costs_nothing_of_the_allowance_and_many_end_the_try() -> None:
    handles = [f"s{n:02}" for n in range(40)]
    r = rig(seats_of(*handles), sweep_interval_s=60.0, ttl_s=600.0)
    await r.host.start()
    free = [handle for handle in handles if handle not in r.host.held()]
    lost, left = free[:20], free[20:]
    for handle in lost:
        r.fleet.steal(handle)
    tried = len(r.leases.claims())
    r.host.hear_freed(told_by("x", *lost))
    await asyncio.sleep(5)
    assert len(r.leases.claims()) - tried == MOST_LOST
    r.host.hear_freed(told_by("x", *left))
    await asyncio.sleep(5)
    assert len(r.host.held()) == 4 + 4
    await r.host.stop()


@in_virtual_time
async def test_claims_that_take_long_keep_to_the_shares_of_a_plan_that_was_made_meanwhile() -> None:
    handles = ["s1", "s2", "s3", "s4"]
    r = rig(seats_of(*handles), sweep_interval_s=5.0, ttl_s=600.0)
    peer_row(r.fleet, "x", seats_held=4)
    for handle in handles:
        r.fleet.steal(handle, "x:1")
    await r.host.start()
    await asyncio.sleep(1.0)
    for resource in list(r.fleet.leases):
        if not resource.startswith("node:a"):
            r.fleet.drop(resource)
    r.leases.delays["claim"] = 3.0
    r.host.hear_freed(told_by("x", *handles, standing="gone"))
    peer_row(r.fleet, "y", seats_held=0)
    await asyncio.sleep(14.0)
    assert len(r.leases.claims()) == 2, "of four seats over two nodes"
    await r.host.stop()


@in_virtual_time
async def test_a_pass_does_not_wait_for_a_seat_that_came_here_by_the_news_meanwhile() -> None:
    r = rig(seats_of("s1", "s2", "s3"), sweep_interval_s=60.0, ttl_s=600.0)
    for handle in ("s1", "s2", "s3"):
        r.fleet.steal(handle, "x:1")
    await r.host.start()
    for handle in ("s1", "s2", "s3"):
        r.fleet.drop(f"seat:{handle}")
    r.hooks.acquire_takes["s2"] = 300.0
    r.leases.delays["claim"] = 1.0
    r.host.request_sweep()
    await until(lambda: r.leases.claims()[-1:] == ["s1"])
    del r.leases.delays["claim"]  # what is asked from now on is answered sooner
    r.host.hear_freed(told_by("x", "s2"))
    await until(lambda: "s3" in r.host.held(), within_s=10.0)
    assert sorted(r.host.held()) == ["s1", "s3"]
    assert r.leases.claims()[-3:] == ["s1", "s2", "s3"]
    await r.host.stop()


@in_virtual_time
async def test_seats_of_a_peer_that_withdraws_are_taken_at_once() -> None:
    r = rig(seats_of("a", "b"), sweep_interval_s=60.0)
    peer_row(r.fleet, "x", seats_held=1)
    r.fleet.steal("b")
    await r.host.start()
    r.fleet.drop("seat:b")
    r.host.hear_freed(told_by("x", "b"))
    await asyncio.sleep(1)
    assert list(r.host.held()) == ["a"]
    r.host.hear_freed(told_by("x", "b", standing="withdrawn"))
    await until(lambda: sorted(r.host.held()) == ["a", "b"], within_s=0.1)
    await r.host.stop()


@in_virtual_time
async def test_news_of_a_former_incarnation_counts_and_ones_own_does_not() -> None:
    r = rig(seats_of("a", "b", "c"), sweep_interval_s=60.0, claims_per_sweep=1)
    await r.host.start()
    tried = len(r.leases.claims())
    r.host.hear_freed(told_by("a", "b", "c", owner="a:1", standing="gone"))
    await asyncio.sleep(1)
    assert len(r.leases.claims()) == tried
    r.host.hear_freed(told_by("a", "b", "c", owner="a:0", standing="gone"))
    await until(lambda: len(r.host.held()) == 3, within_s=0.1)
    assert r.host.live_nodes == 1
    await r.host.stop()


@in_virtual_time
async def test_seats_that_a_pass_gives_back_are_named_in_one_message_with_the_count_that_is_left() -> None:
    told: list[tuple[Sequence[str], object]] = []
    r = rig(seats_of(*"abcd"))

    def tell(freed: Freed) -> None:
        row = r.fleet.live("node:a")
        told.append((sorted(freed.seats), row.meta["seats_held"] if row else None))

    r.freed.append(tell)
    await r.host.start()
    r.hooks.release_takes["a"] = 0.004
    peer_row(r.fleet, "x", seats_held=0)
    await until(lambda: bool(told))
    await asyncio.sleep(1)
    assert told == [(["a", "b"], 2)]
    await r.host.stop()


@in_virtual_time
async def test_a_seat_that_takes_long_to_go_holds_up_no_other_ones_news() -> None:
    told: list[tuple[float, tuple[str, ...], str]] = []
    r = rig(seats_of("a", "b"))
    r.freed.append(lambda freed: told.append((r.clock.elapsed(), freed.seats, freed.standing)))
    await r.host.start()
    r.hooks.release_takes["b"] = 7.0
    began_at = r.clock.elapsed()
    await r.host.drain()
    assert [(seats, standing) for _, seats, standing in told] == [(("a",), "gone"), (("b",), "gone")]
    assert told[0][0] - began_at < 0.1 and told[1][0] - began_at > 7.0
    await r.host.stop()


@in_virtual_time
async def test_a_peer_whose_presence_is_still_in_the_store_is_not_said_to_be_gone() -> None:
    told: list[str] = []
    r = rig(seats_of("a"))
    r.freed.append(lambda freed: told.append(freed.standing))
    await r.host.start()
    r.leases.delays["release node:a"] = 3600.0
    await r.host.drain()
    assert told == ["stays"]
    await r.host.stop()


@in_virtual_time
async def test_a_release_that_was_answered_late_is_told_too() -> None:
    told: list[tuple[str, ...]] = []
    r = rig(seats_of("a", "b"), sweep_interval_s=60.0)
    r.freed.append(lambda freed: told.append(freed.seats))
    await r.host.start()
    r.leases.down.add("release")
    await r.host.give_back("a", "unprepared")
    assert told == []
    r.leases.down.clear()
    await until(lambda: told == [("a",)], within_s=20)
    await r.host.stop()


@in_virtual_time
async def test_a_store_that_does_not_take_the_lower_count_holds_neither_news_nor_drain_up() -> None:
    told: list[tuple[float, tuple[str, ...]]] = []
    r = rig(seats_of("a", "b"), sweep_interval_s=60.0)
    r.freed.append(lambda freed: told.append((r.clock.elapsed(), freed.seats)))
    await r.host.start()
    began_at = r.clock.elapsed()
    r.leases.delays["renew node:a"] = 3600.0
    giving = asyncio.ensure_future(r.host.give_back("a", "unprepared"))
    await until(lambda: r.fleet.owner("a") is None)
    async with asyncio.timeout(30):
        await r.host.drain()
    await giving
    assert sorted(seats for _, seats in told) == [("a",), ("b",)]
    assert all(at - began_at < 12 for at, _ in told)
    await r.host.stop()


# What a fleet makes of it


async def fleet_of_three(count: int) -> Fleet:
    """Three nodes that hold equally many seats."""
    fleet = Fleet([f"s{number:02}" for number in range(count)])
    for name in "abc":
        await fleet.node(name)
    await fleet.until(lambda: [len(node.host.held()) for node in fleet.nodes.values()] == [count // 3] * 3, "balanced")
    return fleet


@in_virtual_time
async def test_a_drain_is_told_in_one_message_and_leaves_no_seat_dark_for_longer_than_an_interval() -> None:
    fleet, heard = await fleet_of_three(36), list[bytes]()
    await fleet.signals.listen(SIGNAL, heard.append)
    seats = sorted(fleet.nodes["c"].host.held())
    began_at = fleet.clock.elapsed()
    await fleet.stop("c")
    assert [sorted(news.decode(data).seats) for data in heard] == [seats]
    assert news.decode(heard[0]).standing == "gone"
    held = lambda: [seat for seat in seats if fleet.holder(seat)]  # noqa: E731
    await fleet.until(lambda: len(held()) == 8, "four early claims at each peer", bound_s=0.5)
    await fleet.until(lambda: len(held()) == 12, "the rest at the next pass", bound_s=5.5)
    assert fleet.clock.elapsed() - began_at < 6.0
    await fleet.close()


@in_virtual_time
async def test_news_that_is_lost_costs_a_pass() -> None:
    fleet = await fleet_of_three(6)
    fleet.signals.broadcast = lambda name, data: None
    seats = sorted(fleet.nodes["c"].host.held())
    await fleet.stop("c")
    await fleet.until(lambda: all(fleet.holder(seat) for seat in seats), "the next pass", bound_s=5.5)
    await fleet.close()


@in_virtual_time
async def test_what_is_no_news_of_freed_seats_is_passed_over_with_a_line() -> None:
    fleet = await fleet_of_three(3)
    with structlog.testing.capture_logs() as logs:
        for data in (b"", b"{", b'{"owner":"x:1"}'):
            fleet.signals.broadcast(SIGNAL, data)
        fleet.signals.broadcast(SIGNAL, news.encode(told_by("x", "*", "no-seat-of-ours", "", standing="gone")))
        await fleet.clock.sleep(1)
    assert sum(entry["event"] == "seats_freed_unreadable" for entry in logs) == 3 * 3
    assert not any(entry["log_level"] in {"error", "critical"} for entry in logs)
    assert all(fleet.holder(f"s{number:02}") for number in range(3))
    await fleet.close()


# A hundred of them


class Counted:
    """A bucket half a millisecond away that counts what it is asked."""

    def __init__(self, cells: Cells, asked: Counter[str]) -> None:
        self._cells = cells
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cells, name)
        if name not in {"read", "create", "replace", "remove", "list", "level"}:
            return found

        async def ask(*args: Any, **options: Any) -> Any:
            self._asked[name] += 1
            await asyncio.sleep(0.0005)
            answer = await found(*args, **options)
            await asyncio.sleep(0.0005)
            return answer

        return ask


class CountedLeases(LeaseStore):
    """Real leases that count their claims."""

    claims = 0

    async def claim(self, *args: Any, **options: Any) -> ClaimResult:
        self.claims += 1
        return await super().claim(*args, **options)


class Dice(SystemEntropy):
    """Chance that is the same in every run."""

    def __init__(self) -> None:
        self._dice = random.Random(7)

    def random(self) -> float:
        return self._dice.random()


@dataclass
class Crowd:
    clock: VirtualClock
    hosts: list[SeatHost]
    stores: list[CountedLeases]
    asked: Counter[str]
    heard: list[bytes]

    @property
    def held(self) -> int:
        return sum(len(host.held()) for host in self.hosts)


async def crowd(seats: Sequence[Seat]) -> Crowd:
    """A hundred hosts on real leases, each with one seat and room for another; one has two."""
    clock, signals, entropy = VirtualClock(), LocalSignals(), Dice()
    cells = LocalCells(clock)
    asked, heard, hosts = Counter[str](), list[bytes](), list[SeatHost]()
    leases = cast(Cells, Counted(await cells.open(leases_bucket(3600.0)), asked))
    epochs = cast(Cells, Counted(await cells.open(EPOCHS_BUCKET), asked))
    await signals.listen(SIGNAL, heard.append)
    stores = [CountedLeases(leases, epochs, clock=clock, entropy=entropy) for _ in range(HOSTS)]
    for number, store in enumerate(stores):
        await store.claim(f"node:n{number}", f"n{number}:1", meta={"roles": ["seats"], "seats_held": 0})
    for number, store in enumerate(stores):
        freed_news = FreedNews(signals)
        host = SeatHost(
            HostConfig(f"n{number}", f"n{number}:1", ALL_ROLES, {}, sweep_interval_s=600.0, claims_per_sweep=1),
            store,
            lambda: seats,
            RecordingHooks(),
            clock=clock,
            entropy=entropy,
            deadline=NoDeadline(),
            on_freed=freed_news.tell,
        )
        await freed_news.listen(host.hear_freed)
        hosts.append(host)
        await host.start()
    made = Crowd(clock, hosts, stores, asked, heard)
    hosts[0].request_sweep()
    await until(lambda: made.held == len(seats))
    return made


@in_virtual_time
async def test_a_hundred_hosts_that_hear_of_one_seat_ask_once_each_and_one_has_it() -> None:
    seats = seats_of(*(f"s{number:03}" for number in range(HOSTS + 1)))
    fleet = await crowd(seats)
    giver = fleet.hosts[0]
    given = sorted(giver.held())[0]
    assert len(giver.held()) == 2
    before = [store.claims for store in fleet.stores]
    fleet.asked.clear()
    fleet.heard.clear()
    await giver.give_back(given, "unprepared")
    await until(lambda: fleet.held == len(seats), within_s=0.1, step_s=0.001)
    await asyncio.sleep(60)
    claims = [store.claims - earlier for store, earlier in zip(fleet.stores, before, strict=True)]
    assert sum(given in host.held() for host in fleet.hosts) == 1 and given not in giver.held()
    assert len(fleet.heard) == 1
    assert claims == [0] + [1] * (HOSTS - 1)
    # Most are late enough to be told by one read, and by a second one that nothing older has answered.
    assert fleet.asked["read"] <= 3 * HOSTS
    assert fleet.asked["create"] + fleet.asked["replace"] <= HOSTS // 3
    await asyncio.gather(*(host.stop() for host in fleet.hosts))
