"""Giving seats back, and the seats whose teardown is not proven."""

import asyncio
import math

import pytest
import structlog
from host_rig import Rig, rig, seats_of

from crewlet.ports.term import Term
from crewlet.testing.virtual import in_virtual_time, until

HEARTBEAT_S = 8.0
"""The period of the loop at a TTL of 30 s."""


async def started(*handles: str) -> Rig:
    r = rig(seats_of(*handles))
    await r.host.start()
    return r


@pytest.mark.proves("RL-01", "TB-07")
@in_virtual_time
async def test_a_failed_teardown_keeps_the_lease_and_lists_the_seat_as_unproven() -> None:
    r = await started("ann")
    assert r.host.unproven_seconds() == {}
    r.hooks.fails_release.add("ann")

    assert not await r.host.give_back("ann", "unprepared")

    assert dict(r.host.held()) == {}
    assert r.host.may_start("ann") is None
    assert list(r.host.unproven_seconds()) == ["ann"]
    await asyncio.sleep(200)
    assert r.host.unproven_seconds()["ann"] == pytest.approx(200, abs=1)
    lease = r.fleet.live("seat:ann")
    assert lease is not None and (lease.owner, lease.epoch) == ("a:1", 1)
    await r.host.stop()


@pytest.mark.proves("RL-02", "RL-11")
@in_virtual_time
async def test_an_undead_seat_is_torn_down_again_each_heartbeat_and_freed_by_the_first_success() -> None:
    r = await started("ann", "bob")
    r.hooks.fails_release.add("ann")
    await r.host.give_back("ann", "unprepared")
    with structlog.testing.capture_logs() as logs:
        await asyncio.sleep(3 * HEARTBEAT_S)
        assert set(r.hooks.releases()) == {"ann unprepared voluntary"}
        assert 3 <= len(r.hooks.releases()) <= 5
        assert r.leases.claims().count("ann") == 1
        r.hooks.fails_release.clear()
        freed = len(r.leases.asked)
        await until(lambda: r.host.unproven_seconds() == {}, within_s=HEARTBEAT_S + 1)
    assert "release seat:ann" in r.leases.asked[freed:]
    assert [e["reason"] for e in logs if e["event"] == "seat_release_recovered"] == ["unprepared"]
    await until(lambda: "ann" in r.host.held(), within_s=6)
    assert r.host.may_start("ann") == 2
    await r.host.stop()


@in_virtual_time
async def test_the_alarm_for_an_undead_seat_is_raised_every_twenty_heartbeats() -> None:
    r = await started("ann")
    r.hooks.fails_release.add("ann")
    with structlog.testing.capture_logs() as logs:
        await r.host.give_back("ann", "unprepared")
        await asyncio.sleep(41 * HEARTBEAT_S)
    alarms = [e for e in logs if e["event"] == "seat_still_unproven"]
    assert [e["attempts"] for e in alarms] == [20, 40]
    assert alarms[1]["elapsed_s"] == pytest.approx(40 * HEARTBEAT_S, abs=HEARTBEAT_S)
    assert len([e for e in logs if e["event"] == "seat_release_unproven"]) == 1
    await r.host.stop()


@in_virtual_time
async def test_the_fence_of_an_undead_seat_stays_open() -> None:
    r = await started("ann")
    fence = r.host.fence("ann")
    assert fence is not None
    r.hooks.fails_release.add("ann")
    await r.host.give_back("ann", "unprepared")
    await asyncio.sleep(100)
    fence.check()
    await r.host.stop()


@pytest.mark.proves("RL-04")
@in_virtual_time
async def test_an_undead_seat_whose_lease_went_is_neither_listed_nor_renewed() -> None:
    r = await started("ann")
    r.hooks.fails_release.add("ann")
    await r.host.give_back("ann", "unprepared")
    r.fleet.steal("ann")
    await until(lambda: r.host.unproven_seconds() == {}, within_s=HEARTBEAT_S + 1)
    asked = len(r.leases.asked)
    await asyncio.sleep(5 * HEARTBEAT_S)
    assert "renew seat:ann" not in r.leases.asked[asked:]
    # Its teardown is still owed, and until it is proven this node does not consume the seat a second time.
    r.fleet.drop("seat:ann")
    await asyncio.sleep(60)
    assert r.leases.claims().count("ann") == 1
    r.hooks.fails_release.clear()
    await until(lambda: "ann" in r.host.held(), within_s=30)
    await r.host.stop()


@pytest.mark.proves("RL-05")
@in_virtual_time
async def test_seats_are_released_side_by_side_and_a_stuck_one_holds_up_no_other() -> None:
    r = await started("ann", "bob", "cyd")
    r.hooks.release_takes = {"ann": 2.0, "bob": 2.0, "cyd": 2.0}
    r.hooks.fails_release.add("bob")
    await r.host.drain()
    assert [call.split()[0] for call in r.hooks.calls if call.startswith("release")] == ["release"] * 3 + [
        "released",
        "released",
    ]
    assert (r.fleet.owner("ann"), r.fleet.owner("bob"), r.fleet.owner("cyd")) == (None, "a:1", None)
    assert list(r.host.unproven_seconds()) == ["bob"]
    await r.host.stop()


@pytest.mark.proves("RL-06")
@in_virtual_time
async def test_a_release_waits_for_the_acquisition_of_the_same_seat() -> None:
    r = rig(seats_of("ann"))
    r.hooks.acquire_takes["ann"] = 3.0
    starting = asyncio.create_task(r.host.start())
    await until(lambda: "acquire ann" in r.hooks.calls)
    assert await r.host.give_back("ann", "unprepared")
    order = [call.split()[0] for call in r.hooks.calls if call.split()[0] in ("acquire", "acquired", "release")]
    assert order == ["acquire", "acquired", "release"]
    await starting
    await r.host.stop()


@in_virtual_time
async def test_a_seat_admits_no_turn_while_its_acquire_hook_runs_and_is_renewed_meanwhile() -> None:
    r = rig(seats_of("ann"))
    r.hooks.acquire_takes["ann"] = 100.0
    starting = asyncio.create_task(r.host.start())
    await until(lambda: "acquire ann" in r.hooks.calls)
    assert r.host.may_start("ann") is None
    assert "ann" not in r.host.held()
    await asyncio.sleep(99)
    assert r.fleet.owner("ann") == "a:1"
    await until(lambda: "established ann" in r.hooks.calls, within_s=2)
    assert r.host.may_start("ann") == 1
    await starting
    await r.host.stop()


@pytest.mark.proves("RL-08")
@in_virtual_time
async def test_a_late_no_for_an_old_epoch_leaves_a_new_tenure_alone() -> None:
    r = await started("ann")
    r.fleet.drop("seat:ann")
    # The store says no, and the answer takes its time.
    r.leases.late["renew seat:ann"] = 6.0
    asked = r.leases.asked.count("renew seat:ann")
    await until(lambda: r.leases.asked.count("renew seat:ann") > asked, within_s=9)
    r.leases.late["renew seat:ann"] = 0.0
    r.hooks.release_takes["ann"] = 0.5
    assert await r.host.give_back("ann", "unprepared")
    await until(lambda: r.host.may_start("ann") == 2, within_s=6)
    await asyncio.sleep(20)
    assert r.host.may_start("ann") == 2
    assert r.hooks.releases() == ["ann unprepared voluntary"]
    await r.host.stop()


@pytest.mark.proves("RL-10")
@in_virtual_time
async def test_a_seat_that_a_peer_took_is_dropped_at_the_next_heartbeat() -> None:
    r = await started("ann")
    r.fleet.steal("ann")
    await until(lambda: r.host.held() == {}, within_s=HEARTBEAT_S + 1)
    await asyncio.sleep(0.1)
    assert r.hooks.releases() == ["ann lease_lost fenced"]
    assert r.host.term("ann") is None and r.host.may_start("ann") is None
    assert r.fleet.owner("ann") == "peer:1"
    await r.host.stop()


@in_virtual_time
async def test_a_lost_lease_is_given_back_only_once_its_seat_was_taken_down() -> None:
    """A renewal of it that landed too late keeps others out until then."""
    r = await started("ann")
    r.hooks.fails_release.add("ann")
    r.fleet.steal("ann")
    await until(lambda: "ann lease_lost fenced" in r.hooks.releases(), within_s=HEARTBEAT_S + 1)
    await asyncio.sleep(HEARTBEAT_S)
    assert "release seat:ann" not in r.leases.asked
    r.hooks.fails_release.clear()
    await until(lambda: "release seat:ann" in r.leases.asked, within_s=HEARTBEAT_S + 1)
    assert r.fleet.owner("ann") == "peer:1"
    await r.host.stop()


@in_virtual_time
async def test_a_teardown_that_does_not_end_is_unproven_and_tried_by_waiting_for_it() -> None:
    """It keeps no drain from ending: the process leaves, and its lease stays until it lapses."""
    r = await started("ann", "bob")
    r.hooks.release_takes.update(ann=100.0, bob=math.inf)
    leaving = [asyncio.create_task(r.host.give_back(handle, "unprepared")) for handle in ("ann", "bob")]
    await until(lambda: set(r.host.unproven_seconds()) == {"ann", "bob"}, within_s=11)
    assert await asyncio.gather(*leaving) == [False, False]
    assert dict(r.host.held()) == {}
    await until(lambda: r.fleet.owner("ann") is None, within_s=100)
    assert list(r.host.unproven_seconds()) == ["bob"] and r.fleet.owner("bob") == "a:1"
    assert r.hooks.releases() == ["ann unprepared voluntary", "bob unprepared voluntary"]
    await r.host.drain()
    await r.host.stop()


@pytest.mark.proves("RL-12")
@in_virtual_time
async def test_work_on_a_held_seat_and_its_release_do_not_cross() -> None:
    r = await started("ann")
    done: list[str] = []

    async def work(term: Term) -> None:
        await asyncio.sleep(5)
        done.append(f"work at {term.epoch}, releases: {len(r.hooks.releases())}")

    working = asyncio.create_task(r.host.with_seat("ann", work))
    await asyncio.sleep(0.1)
    await r.host.give_back("ann", "unprepared")
    assert done == ["work at 1, releases: 0"]
    assert await working
    r.seats.clear()
    assert not await r.host.with_seat("ann", work)
    assert len(done) == 1
    await r.host.stop()


@in_virtual_time
async def test_a_voluntary_release_waits_for_the_handler_and_after_its_bound_goes_on_fenced() -> None:
    r = rig(seats_of("ann", "bob"), handoff_wait_s=60.0)
    await r.host.start()
    r.hooks.busy = {"ann", "bob"}
    fences = {handle: r.host.fence(handle) for handle in ("ann", "bob")}
    releasing = [asyncio.create_task(r.host.give_back(handle, "unprepared")) for handle in ("ann", "bob")]
    await asyncio.sleep(30)
    assert r.hooks.releases() == []
    assert all(fence is not None and not fence.is_closed for fence in fences.values())
    assert r.host.may_start("ann") is None
    r.hooks.busy.discard("ann")
    await asyncio.sleep(1)
    assert r.hooks.releases() == ["ann unprepared voluntary"]
    await asyncio.sleep(30)
    assert r.hooks.releases() == ["ann unprepared voluntary", "bob unprepared fenced"]
    assert all(await asyncio.gather(*releasing))
    assert fences["bob"] is not None and fences["bob"].is_closed
    await r.host.stop()


@in_virtual_time
async def test_a_release_that_nobody_answered_is_asked_again_until_the_lease_is_gone() -> None:
    r = await started("ann")
    r.leases.down.add("release")
    r.seats.clear()
    await r.host.give_back("ann", "unprepared")
    assert r.fleet.owner("ann") == "a:1"
    r.leases.down.clear()
    await until(lambda: r.fleet.owner("ann") is None, within_s=HEARTBEAT_S + 1)
    await r.host.stop()


@in_virtual_time
async def test_a_pending_release_does_not_hit_the_tenure_that_was_won_meanwhile() -> None:
    r = await started("ann")
    r.leases.down.add("release")
    await r.host.give_back("ann", "unprepared")
    await until(lambda: r.host.may_start("ann") is not None, within_s=6)
    r.leases.down.clear()
    await asyncio.sleep(40)
    assert r.fleet.owner("ann") == "a:1"
    assert r.host.may_start("ann") == 1
    await r.host.stop()


@in_virtual_time
async def test_a_renewal_that_lands_after_its_seat_was_dropped_is_given_back() -> None:
    r = await started("ann")
    r.behind.append(True)
    asked = r.leases.asked.count("renew seat:ann")
    # The renewal reaches the store, and so prolongs the lease, half a TTL after the seat was dropped here.
    r.leases.delays["renew seat:ann"] = 21.5
    await until(lambda: r.leases.asked.count("renew seat:ann") > asked, within_s=9)
    r.leases.down.add("release")
    await until(lambda: "ann" not in r.host.held(), within_s=31)
    await asyncio.sleep(25)
    assert r.fleet.owner("ann") == "a:1"
    r.leases.down.clear()
    await until(lambda: r.fleet.owner("ann") is None, within_s=HEARTBEAT_S + 1)
    await r.host.stop()


@pytest.mark.proves("AD-10")
@in_virtual_time
async def test_a_callback_that_raises_harms_no_other_seat() -> None:
    r = await started("ann", "bob")
    r.hooks.raises_on_admission.add("ann")
    r.leases.down.add("renew")
    await until(lambda: "admits bob False" in r.hooks.calls, within_s=20)
    r.leases.down.clear()
    await asyncio.sleep(60)
    assert sorted(r.host.held()) == ["ann", "bob"]
    assert r.host.may_start("ann") == 1 and r.host.may_start("bob") == 1
    await r.host.stop()
