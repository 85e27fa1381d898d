"""One pass after another: what a node takes, gives back, and leaves alone."""

import asyncio

import msgspec
import pytest
import structlog
from host_rig import Fleet, passes, peer_row, rig, seats_of

from crewlet.company.model import Placement, Seat
from crewlet.ports.errors import Misuse
from crewlet.seats.host import HostConfig
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

PASS_S = 5.0


@pytest.mark.proves("SW-24")
@in_virtual_time
async def test_ten_seats_at_three_claims_a_pass_take_four_passes() -> None:
    r = rig(seats_of(*"abcdefghij"), claims_per_sweep=3)
    await r.host.start()
    counts = [len(r.host.held())]
    for _ in range(4):
        await passes(r)
        counts.append(len(r.host.held()))
    assert counts == [3, 6, 9, 10, 10]
    await r.host.stop()


@pytest.mark.proves("SW-22")
@in_virtual_time
async def test_a_peer_that_is_gone_leaves_its_share_to_who_is_left() -> None:
    r = rig(seats_of(*"abcdefghij"))
    peer_row(r.fleet, "b")
    await r.host.start()
    await passes(r, 2)
    assert len(r.host.held()) == 5
    r.fleet.drop("node:b")
    await passes(r)
    assert len(r.host.held()) == 9
    await passes(r)
    record = r.host.last_sweep
    assert record is not None and (record.nodes, record.capacity, record.held) == (1, 10, 10)
    await r.host.stop()


@pytest.mark.proves("SW-27")
@in_virtual_time
async def test_an_excess_goes_two_a_pass_idle_before_busy_then_by_name() -> None:
    r = rig(seats_of(*"abcdefghij"), claims_per_sweep=10)
    await r.host.start()
    assert len(r.host.held()) == 10
    r.hooks.busy = {"a", "b"}
    for node in ("x", "y", "z"):
        peer_row(r.fleet, node)
    await passes(r)
    assert r.hooks.releases() == ["c rebalance voluntary", "d rebalance voluntary"]
    record = r.host.last_sweep
    assert record is not None and record.capacity == 3
    assert record.lost == (("c", "rebalance"), ("d", "rebalance"))
    await r.host.stop()


@in_virtual_time
async def test_a_busy_seat_on_its_way_out_does_not_hold_up_the_passes() -> None:
    r = rig(seats_of("a", "b"))
    await r.host.start()
    r.hooks.busy = {"a", "b"}
    peer_row(r.fleet, "x")
    began = r.clock.elapsed()
    await passes(r, 2)
    assert r.clock.elapsed() - began < 2 * PASS_S + 1
    assert sorted(r.host.held()) == ["a", "b"], "one seat leaves, when its handler ends"
    assert r.host.may_start("a") is None and r.host.may_start("b") == 1
    r.hooks.busy.clear()
    await until(lambda: sorted(r.host.held()) == ["b"], within_s=1)
    record = r.host.last_sweep
    assert record is not None and ("a", "rebalance") in record.lost
    await r.host.stop()


@pytest.mark.proves("SW-05")
@in_virtual_time
async def test_an_unreadable_roster_is_the_last_known_fleet_and_before_any_a_fleet_of_one() -> None:
    r = rig(seats_of("a", "b", "c", "d"))
    peer_row(r.fleet, "x")
    await r.host.start()
    assert len(r.host.held()) == 2
    r.leases.down.add("list")
    await passes(r, 2)
    record = r.host.last_sweep
    assert record is not None and record.capacity == 2 and len(r.host.held()) == 2
    await r.host.stop()

    alone = rig([*seats_of("a", "b"), *seats_of("pinned", placement=Placement(node="nobody"))])
    peer_row(alone.fleet, "x")
    alone.leases.down.add("list")
    await alone.host.start()
    assert sorted(alone.host.held()) == ["a", "b"]
    record = alone.host.last_sweep
    assert record is not None and record.unplaceable == () and alone.host.live_nodes is None
    await alone.host.stop()


@pytest.mark.proves("SW-06")
@in_virtual_time
async def test_an_unreadable_seat_list_changes_nothing() -> None:
    r = rig(seats_of("a", "b"))
    await r.host.start()

    def broken() -> list[Seat]:
        raise RuntimeError("no company")

    r.company.append(broken)
    await passes(r, 3)
    assert sorted(r.host.held()) == ["a", "b"] and r.hooks.releases() == []
    await r.host.stop()


@pytest.mark.proves("SW-07")
@in_virtual_time
async def test_a_failed_acquisition_is_given_back_and_rests_for_a_ttl() -> None:
    r = rig(seats_of("a"), ttl_s=30.0)
    r.hooks.fails_acquire.add("a")
    await r.host.start()
    record = r.host.last_sweep
    assert record is not None and record.claimed == ()
    assert r.hooks.releases() == ["a acquire_failed fenced"]
    assert r.fleet.owner("a") is None
    failed_at = r.clock.elapsed()
    await asyncio.sleep(29)
    assert r.leases.claims() == ["a"]
    await until(lambda: r.leases.claims() == ["a", "a"], within_s=PASS_S + 2)
    assert r.clock.elapsed() - failed_at >= 30 - 0.1
    await r.host.stop()


@pytest.mark.proves("SW-08")
@in_virtual_time
async def test_a_seat_lost_to_an_outage_of_renewals_is_not_taken_straight_back() -> None:
    r = rig(seats_of("a"), ttl_s=30.0)
    await r.host.start()
    r.leases.down.add("renew")
    await until(lambda: r.host.held() == {}, within_s=31)
    dropped_at = r.clock.elapsed()
    r.leases.down.clear()
    await asyncio.sleep(28)
    assert r.leases.claims() == ["a"]
    await until(lambda: "a" in r.host.held(), within_s=8)
    assert r.clock.elapsed() - dropped_at >= 29
    await r.host.stop()


@pytest.mark.proves("SW-09")
@in_virtual_time
async def test_a_full_fleet_is_read_off_the_counts_and_no_claim_is_tried() -> None:
    r = rig(seats_of("a", "b", "c"))
    peer_row(r.fleet, "x", seats_held=2)
    r.fleet.steal("a")
    r.fleet.steal("b")
    await r.host.start()
    assert list(r.host.held()) == ["c"]
    asked = len(r.leases.asked)
    await passes(r, 3)
    record = r.host.last_sweep
    assert record is not None and record.is_fleet_full and record.capacity == 2
    later = r.leases.asked[asked:]
    assert not any(call.startswith(("claim seat:", "hints")) for call in later)
    await r.host.stop()


@pytest.mark.proves("SW-11")
@in_virtual_time
async def test_a_peer_whose_count_cannot_be_read_makes_the_node_try() -> None:
    r = rig(seats_of("a"))
    peer_row(r.fleet, "x", seats_held="many")
    r.fleet.steal("a")
    await r.host.start()
    record = r.host.last_sweep
    assert record is not None and not record.is_fleet_full
    assert r.leases.claims() == ["a"]
    await r.host.stop()


@pytest.mark.proves("SW-10")
@in_virtual_time
async def test_a_seat_given_back_is_taken_at_the_next_pass_because_the_release_told_its_count() -> None:
    fleet = Fleet(VirtualClock(), 60.0)
    a = rig(seats_of("s"), fleet=fleet, node_id="a")
    b = rig(seats_of("s"), fleet=fleet, node_id="b")
    await a.host.start()
    await b.host.start()
    await passes(b)
    record = b.host.last_sweep
    assert record is not None and record.is_fleet_full
    a.behind.append(True)
    await a.host.give_back("s", "unprepared")
    lease = fleet.live("node:a")
    assert lease is not None and lease.meta["seats_held"] == 0
    await passes(b)
    assert "s" in b.host.held()
    await a.host.stop()
    await b.host.stop()


@pytest.mark.proves("SW-12", "SW-13")
@in_virtual_time
async def test_one_pass_an_interval_comes_early_and_takes_the_place_of_the_tick() -> None:
    r = rig(seats_of("a"))
    began: list[float] = []

    def read() -> list[Seat]:
        began.append(r.clock.elapsed())
        return r.seats

    r.company.append(read)
    r.host.request_sweep()
    await r.host.start()
    start = began[0]
    await asyncio.sleep(1)
    assert len(began) == 1, "the first pass answered the request made before it"
    r.host.request_sweep()
    await asyncio.sleep(0.1)
    assert [round(at - start, 1) for at in began] == [0.0, 1.0]
    r.host.request_sweep()
    await asyncio.sleep(4.5)
    assert len(began) == 2, "a second request waits for the tick"
    await asyncio.sleep(0.6)
    assert [round(at - start, 1) for at in began] == [0.0, 1.0, 6.0]
    r.host.request_sweep()
    await asyncio.sleep(0.1)
    assert len(began) == 4
    await r.host.stop()


@pytest.mark.proves("SW-14")
@in_virtual_time
async def test_a_loss_after_the_pass_is_a_new_record() -> None:
    r = rig(seats_of("a", "b", "c"), sweep_interval_s=60.0)
    await r.host.start()
    peer_row(r.fleet, "x")
    r.host.request_sweep()
    await passes(r)
    first = r.host.last_sweep
    assert first is not None and [handle for handle, _ in first.lost] == ["a"]
    r.fleet.steal("b")
    await until(lambda: "b" not in r.host.held(), within_s=20)
    await asyncio.sleep(0.1)
    second = r.host.last_sweep
    assert second is not None and second.lost == (("a", "rebalance"), ("b", "lease_lost"))
    assert [handle for handle, _ in first.lost] == ["a"]
    assert msgspec.structs.replace(second, lost=first.lost) == first
    await r.host.stop()


@pytest.mark.proves("SW-29")
@in_virtual_time
async def test_a_seat_whose_role_is_gone_or_moved_leaves_with_its_reason() -> None:
    r = rig(seats_of("a", "b", "c"))
    await r.host.start()
    r.seats[:] = [*seats_of("a"), *seats_of("b", placement=Placement(node="other"))]
    with structlog.testing.capture_logs() as logs:
        r.host.request_sweep()
        await passes(r)
    assert sorted(r.hooks.releases()) == ["b placement voluntary", "c role_gone voluntary"]
    record = r.host.last_sweep
    assert record is not None and sorted(record.lost) == [("b", "placement"), ("c", "role_gone")]
    assert record.unplaceable == ("b",)
    assert [e["seat"] for e in logs if e["event"] == "seat_released_role_gone"] == ["c"]
    assert [e["seats"] for e in logs if e["event"] == "seats_unplaceable"] == [{"b": "node=other"}]
    await r.host.stop()


@pytest.mark.proves("SW-34")
@in_virtual_time
async def test_nothing_is_kept_of_a_seat_that_left_the_company() -> None:
    r = rig(seats_of("a", "b"))
    await r.host.start()
    r.seats.clear()
    await passes(r, 2)
    context = r.host._context  # pyright: ignore[reportPrivateUsage]
    assert context.locks == {} and context.resting == {}
    await r.host.stop()


@pytest.mark.proves("SW-30", "TB-03")
@in_virtual_time
async def test_a_node_that_cannot_route_gives_every_seat_back_and_says_so() -> None:
    r = rig(seats_of("a", "b"))
    await r.host.start()
    r.unroutable.append(True)
    with structlog.testing.capture_logs() as logs:
        await passes(r)
    assert sorted(r.hooks.releases()) == ["a unserviceable voluntary", "b unserviceable voluntary"]
    assert [e["seats"] for e in logs if e["event"] == "seats_shed_unserviceable"] == [["a", "b"]]
    row = r.fleet.live("node:a")
    assert row is not None and row.meta["seats_withdrawn"] is True
    claims = len(r.leases.claims())
    await passes(r, 2)
    assert len(r.leases.claims()) == claims and r.host.held() == {}
    r.unroutable.clear()
    await passes(r)
    assert sorted(r.host.held()) == ["a", "b"]
    row = r.fleet.live("node:a")
    assert row is not None and row.meta["seats_withdrawn"] is False
    await r.host.stop()


@in_virtual_time
async def test_a_check_that_raises_keeps_the_seats() -> None:
    r = rig(seats_of("a"))
    await r.host.start()
    r.behind.append(None)
    r.unroutable.append(None)
    await passes(r, 2)
    assert "a" in r.host.held() and r.hooks.releases() == []
    await r.host.stop()


@in_virtual_time
async def test_a_routing_check_that_raises_brings_no_seats_back_to_a_node_that_could_not_route() -> None:
    r = rig(seats_of("a"))
    await r.host.start()
    r.unroutable.append(True)
    await passes(r, 2)
    claims = len(r.leases.claims())
    r.unroutable.append(None)
    await passes(r, 2)
    assert r.host.held() == {} and len(r.leases.claims()) == claims
    r.unroutable.clear()
    await passes(r)
    assert list(r.host.held()) == ["a"]
    await r.host.stop()


@in_virtual_time
async def test_a_node_that_cannot_tell_whether_it_is_behind_claims_nothing_until_it_can() -> None:
    r = rig(seats_of("a"))
    r.behind.append(None)
    with structlog.testing.capture_logs() as logs:
        await r.host.start()
    assert r.leases.claims() == [] and r.host.last_sweep is not None
    assert r.host.last_sweep.withheld == "behind_unknown"
    assert any(e["event"] == "seat_claims_withheld" and e["reason"] == "behind_unknown" for e in logs)
    r.behind.clear()
    await passes(r)
    assert list(r.host.held()) == ["a"]
    await r.host.stop()


@pytest.mark.proves("TB-03")
@in_virtual_time
async def test_a_node_that_is_behind_keeps_its_seats_and_claims_none() -> None:
    r = rig(seats_of("a"))
    await r.host.start()
    r.behind.append(True)
    r.seats.extend(seats_of("b"))
    with structlog.testing.capture_logs() as logs:
        await passes(r, 2)
    assert list(r.host.held()) == ["a"]
    assert any(e["event"] == "seat_claims_withheld" and e["log_level"] == "debug" for e in logs)
    r.behind.clear()
    await passes(r)
    assert sorted(r.host.held()) == ["a", "b"]
    await r.host.stop()


@pytest.mark.proves("PG-17")
@in_virtual_time
async def test_a_claim_refused_by_the_protocol_gate_ends_the_pass_and_names_the_floor() -> None:
    r = rig(seats_of("a", "b", "c"))
    r.fleet.steal("a")
    r.leases.floor = 1
    with structlog.testing.capture_logs() as logs:
        await r.host.start()
        await passes(r)
    record = r.host.last_sweep
    assert record is not None and record.claimed == () and record.blocked_by_protocol == 1
    assert r.leases.claims() == ["a", "b", "a", "b"]
    assert [e["floor"] for e in logs if e["event"] == "seat_claims_blocked_by_older_protocol"] == [1]
    r.leases.floor = None
    await passes(r)
    record = r.host.last_sweep
    assert record is not None and record.blocked_by_protocol is None and sorted(r.host.held()) == ["b", "c"]
    await r.host.stop()


@in_virtual_time
async def test_seats_that_prefer_this_node_are_tried_first() -> None:
    r = rig(seats_of("a", "b", "c"), claims_per_sweep=1)
    r.fleet.hints["seat:c"] = "a"
    await r.host.start()
    assert list(r.host.held()) == ["c"]
    await r.host.stop()


@in_virtual_time
async def test_a_store_that_answers_no_claim_ends_the_pass_at_the_first() -> None:
    r = rig(seats_of("a", "b", "c"))
    r.leases.down.add("claim")
    await r.host.start()
    assert r.leases.claims() == ["a"]
    r.leases.down.clear()
    await passes(r)
    assert sorted(r.host.held()) == ["a", "b", "c"]
    await r.host.stop()


@in_virtual_time
async def test_acquisitions_of_one_pass_run_side_by_side() -> None:
    r = rig(seats_of("a", "b", "c"))
    r.hooks.acquire_takes = {"a": 10.0, "b": 10.0, "c": 10.0}
    began = r.clock.elapsed()
    await r.host.start()
    assert r.clock.elapsed() - began < 11
    assert sorted(r.host.held()) == ["a", "b", "c"]
    await r.host.stop()


@pytest.mark.proves("SW-32")
@in_virtual_time
async def test_labels_that_change_show_in_the_next_presence_renewal() -> None:
    labels = {"zone": "eu"}
    r = rig(seats_of("a"), labels=labels)
    await r.host.start()
    labels["zone"] = "us"
    await asyncio.sleep(10)
    row = r.fleet.live("node:a")
    assert row is not None and row.meta["labels"] == {"zone": "us"} and row.meta["seats_held"] == 1
    seat = r.fleet.live("seat:a")
    assert seat is not None and dict(seat.meta) == {}
    await r.host.stop()


@pytest.mark.proves("SW-35")
@pytest.mark.parametrize("wrong", [{"node_id": ""}, {"owner": " "}, {"sweep_interval_s": 0}, {"claims_per_sweep": 0}])
def test_a_host_that_cannot_work_is_refused_when_it_is_made(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"node_id": "a", "owner": "a:1", "roles": frozenset({"seats"}), "labels": {}}
    HostConfig(**good)  # type: ignore[arg-type]
    with pytest.raises(Misuse):
        HostConfig(**{**good, **wrong})  # type: ignore[arg-type]


@pytest.mark.proves("SW-33")
@in_virtual_time
async def test_a_status_that_takes_too_long_is_left_out_and_presence_goes_on() -> None:
    takes_s = [0.0]

    async def status() -> dict[str, object]:
        await asyncio.sleep(takes_s[0])
        return {"config_epoch": 7}

    r = rig(seats_of("a"), status=status)
    await r.host.start()
    await asyncio.sleep(9)
    row = r.fleet.live("node:a")
    assert row is not None and row.meta["status"] == {"config_epoch": 7}
    takes_s[0] = 1000.0
    await asyncio.sleep(200)
    row = r.fleet.live("node:a")
    assert row is not None and "status" not in row.meta and r.host.presence_held()
    await r.host.stop()
