"""What a running turn may rely on, the lapse timer, and the deadline told to the parent."""

import asyncio

import pytest
from host_rig import Rig, rig, seats_of

from crewlet.ports.errors import Fenced
from crewlet.seats.fence import SeatFence
from crewlet.testing.virtual import in_virtual_time, until

TTL_S = 30.0


async def started(*handles: str, can_lapse: bool = True) -> Rig:
    r = rig(seats_of(*handles), ttl_s=TTL_S, can_lapse=can_lapse)
    await r.host.start()
    return r


def fence_of(r: Rig, handle: str) -> SeatFence:
    fence = r.host.fence(handle)
    assert fence is not None
    return fence


@pytest.mark.proves("FE-01")
@in_virtual_time
async def test_a_fence_is_closed_by_a_loss_and_stays_closed_when_the_seat_comes_back() -> None:
    r = await started("ann")
    old = fence_of(r, "ann")
    closed = asyncio.create_task(old.wait_closed())
    r.fleet.steal("ann")
    await until(lambda: old.is_closed, within_s=9)
    assert await closed == "lease_lost"
    r.fleet.drop("seat:ann")
    await until(lambda: "ann" in r.host.held(), within_s=10)
    with pytest.raises(Fenced):
        old.check()
    new = fence_of(r, "ann")
    new.check()
    assert new.term.epoch > old.term.epoch
    await r.host.stop()


@pytest.mark.proves("FE-05")
@in_virtual_time
async def test_a_seat_never_claimed_here_has_no_fence() -> None:
    r = await started()
    assert r.host.fence("ann") is None
    await r.host.stop()


@pytest.mark.proves("FE-02")
@in_virtual_time
async def test_the_fence_stays_open_through_an_outage_and_closes_before_a_ttl_since_the_last_answered_renewal() -> None:
    r = await started("ann")
    fence = fence_of(r, "ann")
    r.leases.down.add("renew")
    last_proof = fence.good_until - TTL_S
    await asyncio.sleep(last_proof + TTL_S - 1.01 - r.clock.elapsed())
    fence.check()
    await asyncio.sleep(1.01)
    assert r.clock.elapsed() == pytest.approx(last_proof + TTL_S)
    with pytest.raises(Fenced):
        fence.check()
    await r.host.stop()


@in_virtual_time
async def test_a_fence_wakes_its_waiters_at_its_instant_even_if_nothing_can_be_stopped() -> None:
    r = await started("ann")
    r.hooks.fails_stop.add("ann")
    fence = fence_of(r, "ann")
    r.leases.silent.add("renew")
    assert await fence.wait_closed() == "lease_lapsed"
    assert r.clock.elapsed() == pytest.approx(fence.good_until)
    await r.host.stop()


@in_virtual_time
async def test_a_fence_that_missed_its_timer_is_closed_by_its_clock() -> None:
    r = await started("ann")
    fence = SeatFence(fence_of(r, "ann").term, r.clock, r.clock.elapsed() + 5)
    await asyncio.sleep(5)
    with pytest.raises(Fenced):
        fence.check()
    fence.extend(r.clock.elapsed() + 100)
    with pytest.raises(Fenced):
        fence.check()
    assert await fence.wait_closed() == "lease_lapsed"
    await r.host.stop()


@in_virtual_time
async def test_programs_are_stopped_before_the_instant_and_the_seat_needs_a_new_claim() -> None:
    r = await started("ann")
    fence = fence_of(r, "ann")
    r.leases.down.add("renew")
    await until(lambda: "stop ann" in r.hooks.calls, within_s=60)
    assert fence.good_until - r.clock.elapsed() == pytest.approx(1.0, abs=0.02)
    await until(lambda: "released ann" in r.hooks.calls, within_s=0.5)
    assert fence.is_closed and r.deadline.last is None
    assert r.hooks.releases() == ["ann lease_lost fenced"]
    # The store heals at once; only a fresh claim, after a rest of one TTL, brings the seat back.
    r.leases.down.clear()
    await until(lambda: r.fleet.owner("ann") is None, within_s=1)
    await until(lambda: "ann" in r.host.held(), within_s=40)
    assert r.host.may_start("ann") == 2
    await r.host.stop()


@in_virtual_time
async def test_the_deadline_is_the_earliest_over_what_could_still_act() -> None:
    r = await started("ann", "bob")
    assert r.deadline.last == min(fence_of(r, h).good_until for h in ("ann", "bob"))
    await asyncio.sleep(9)
    assert r.deadline.last == min(fence_of(r, h).good_until for h in ("ann", "bob"))
    assert r.deadline.last is not None and r.deadline.last > r.clock.elapsed() + 20
    r.hooks.fails_stop.add("ann")
    stuck = fence_of(r, "ann")
    r.leases.down.add("renew")
    await asyncio.sleep(60)
    # bob's programs ended in time; ann's did not, and that is what the parent ends this process for.
    assert r.deadline.last == stuck.good_until
    assert r.fleet.owner("bob") is None and "released bob" in r.hooks.calls
    await r.host.stop()


@in_virtual_time
async def test_the_deadline_only_moves_forward_for_a_seat_and_counts_from_before_the_sending() -> None:
    r = await started("ann")
    r.leases.late["renew"] = 4.0
    await until(lambda: "renew seat:ann" in r.leases.asked, within_s=10)
    sent_at = r.clock.elapsed()
    before = r.deadline.last
    await asyncio.sleep(3.9)
    assert r.deadline.last == before
    await asyncio.sleep(0.2)
    assert r.deadline.last == pytest.approx(sent_at + TTL_S, abs=0.02)
    await r.host.stop()
    assert r.deadline.last is None


@in_virtual_time
async def test_an_undead_seat_counts_for_the_deadline_until_it_is_stopped() -> None:
    r = await started("ann")
    r.hooks.fails_release.add("ann")
    await r.host.give_back("ann", "unprepared")
    assert r.deadline.last is not None
    r.leases.down.add("renew")
    await asyncio.sleep(TTL_S)
    assert "stop ann" in r.hooks.calls
    assert r.deadline.last is None
    await r.host.stop()


@in_virtual_time
async def test_a_renewal_answered_after_its_instant_is_not_counted() -> None:
    r = await started("ann")
    fence = fence_of(r, "ann")
    r.hooks.fails_stop.add("ann")
    r.leases.late["renew seat:ann"] = TTL_S
    instant = fence.good_until
    await asyncio.sleep(TTL_S + 12)
    assert fence.is_closed
    assert r.host.may_start("ann") is None
    assert fence.good_until == instant and r.deadline.last == instant
    await r.host.stop()


@in_virtual_time
async def test_leases_that_cannot_lapse_give_no_deadline_and_close_no_fence() -> None:
    r = await started("ann", can_lapse=False)
    fence = fence_of(r, "ann")
    r.leases.down.add("renew")
    await asyncio.sleep(10 * TTL_S)
    fence.check()
    assert "ann" in r.host.held()
    assert r.deadline.told == []
    await r.host.stop()


@in_virtual_time
async def test_an_acquisition_whose_lease_lapses_is_cut_short_and_taken_down() -> None:
    r = rig(seats_of("ann"), ttl_s=TTL_S)
    r.hooks.acquire_takes["ann"] = 1000.0
    starting = asyncio.create_task(r.host.start())
    await until(lambda: "acquire ann" in r.hooks.calls)
    r.leases.down.add("renew")
    await until(lambda: "released ann" in r.hooks.calls, within_s=TTL_S + 10)
    assert "acquired ann" not in r.hooks.calls
    assert r.hooks.releases() == ["ann lease_lost fenced"]
    assert r.deadline.last is None
    await starting
    await r.host.stop()
