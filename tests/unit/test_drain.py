"""Leaving, gracefully and not."""

import asyncio
import contextlib

import pytest
import structlog
from host_rig import Rig, rig, seats_of

from crewlet.seats.lease import Lease
from crewlet.testing.virtual import in_virtual_time, settle, until

TTL_S = 30.0


async def started(*handles: str) -> Rig:
    r = rig(seats_of(*handles), ttl_s=TTL_S)
    await r.host.start()
    return r


def gone(r: Rig) -> bool:
    return not any(lease.owner == "a:1" for lease in r.fleet.leases.values())


@in_virtual_time
async def test_presence_goes_first_then_consumers_stop_then_seats_go() -> None:
    r = await started("ann", "bob")
    asked = len(r.leases.asked)
    await r.host.drain()
    releases = [call for call in r.leases.asked[asked:] if call.startswith("release")]
    assert releases[0] == "release node:a" and sorted(releases[1:]) == ["release seat:ann", "release seat:bob"]
    first_release = next(i for i, call in enumerate(r.hooks.calls) if call.startswith("release "))
    assert {"admits ann False", "admits bob False"} <= set(r.hooks.calls[:first_release])
    assert set(r.hooks.releases()) == {"ann drain voluntary", "bob drain voluntary"}
    assert gone(r) and r.host.is_draining
    await r.host.stop()


@pytest.mark.proves("PR-02")
@in_virtual_time
async def test_presence_does_not_come_back_while_a_drain_waits_and_held_seats_are_renewed() -> None:
    r = await started("ann")
    r.hooks.busy.add("ann")
    with structlog.testing.capture_logs() as logs:
        drain = asyncio.create_task(r.host.drain())
        await asyncio.sleep(5 * TTL_S)
        assert not drain.done()
        assert not r.host.presence_held() and r.fleet.live("node:a") is None
        assert r.fleet.owner("ann") == "a:1" and r.host.may_start("ann") is None
        fence = r.host.fence("ann")
        assert fence is not None and not fence.is_closed
        r.hooks.busy.clear()
        await drain
    progress = [e for e in logs if e["event"] == "drain_in_progress"]
    assert len(progress) == 15 and progress[0]["busy"] == ["ann"]
    assert gone(r)
    await r.host.stop()


@in_virtual_time
async def test_an_idle_seat_does_not_wait_for_the_turn_of_another() -> None:
    r = await started("ann", "bob")
    r.hooks.busy.add("ann")
    drain = asyncio.create_task(r.host.drain())
    await until(lambda: r.fleet.owner("bob") is None, within_s=1)
    assert r.fleet.owner("ann") == "a:1"
    r.hooks.busy.clear()
    await drain
    await r.host.stop()


@pytest.mark.proves("DR-01")
@in_virtual_time
async def test_a_pass_held_up_while_a_drain_begins_claims_nothing_afterwards() -> None:
    r = await started("ann", "bob")
    r.seats.extend(seats_of("cyd"))
    r.leases.delays["list"] = 3.0
    listed = r.leases.asked.count("list node")
    await until(lambda: r.leases.asked.count("list node") > listed)
    await r.host.drain()
    claims = len(r.leases.claims())
    await asyncio.sleep(20)
    assert len(r.leases.claims()) == claims and gone(r)
    await r.host.stop()


@pytest.mark.proves("DR-02")
@in_virtual_time
async def test_a_lease_that_arrives_after_a_drain_began_goes_straight_back() -> None:
    r = rig(seats_of("ann"), ttl_s=TTL_S)
    r.leases.late["claim seat:ann"] = 2.0
    starting = asyncio.create_task(r.host.start())
    await until(lambda: r.fleet.owner("ann") == "a:1")
    await r.host.drain()
    assert r.hooks.calls == [] and gone(r)
    await starting
    await r.host.stop()


@pytest.mark.proves("DR-03")
@pytest.mark.parametrize("verb", ["drain", "stop"])
@in_virtual_time
async def test_leaving_under_an_expired_deadline_still_gives_everything_back(verb: str) -> None:
    r = await started("ann", "bob")
    r.hooks.busy.add("ann")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await getattr(r.host, verb)()
    assert gone(r)
    await r.host.stop()


@pytest.mark.proves("DR-03")
@pytest.mark.parametrize("verb", ["drain", "stop"])
@in_virtual_time
async def test_leaving_from_a_cancelled_task_gives_everything_back(verb: str) -> None:
    r = await started("ann", "bob")
    r.hooks.busy.add("ann")

    async def node() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await getattr(r.host, verb)()

    task = asyncio.create_task(node())
    await settle()
    task.cancel()
    await settle()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert gone(r)
    await r.host.stop()


@pytest.mark.proves("DR-04")
@in_virtual_time
async def test_releases_that_are_never_answered_cost_one_allowance_of_a_third_of_the_ttl() -> None:
    r = await started("ann", "bob")
    r.leases.silent.add("release")
    r.hooks.busy = {"ann", "bob"}
    drain = asyncio.create_task(r.host.drain())
    await asyncio.sleep(100)
    asked = [call for call in r.leases.asked if call.startswith("release")]
    assert asked == ["release node:a"]
    r.hooks.busy.clear()
    ended_at = r.clock.elapsed()
    await drain
    # Presence had its half while the turns ran; the seats share what is left.
    assert r.clock.elapsed() - ended_at == pytest.approx(TTL_S / 6, abs=0.2)
    asked = [call for call in r.leases.asked if call.startswith("release")]
    assert sorted(asked) == ["release node:a", "release seat:ann", "release seat:bob"]
    await r.host.stop()


@pytest.mark.proves("DR-05")
@in_virtual_time
async def test_an_acquisition_cut_short_by_a_stop_gives_its_lease_back() -> None:
    r = rig(seats_of("ann"), ttl_s=TTL_S)
    r.hooks.acquire_takes["ann"] = 1000.0
    starting = asyncio.create_task(r.host.start())
    await until(lambda: "acquire ann" in r.hooks.calls)
    await r.host.stop()
    assert r.hooks.releases() == ["ann acquire_failed fenced"]
    assert gone(r)
    await starting


@pytest.mark.proves("DR-09")
@in_virtual_time
async def test_a_stop_during_a_drain_ends_the_wait_and_the_turns() -> None:
    r = await started("ann")
    r.hooks.busy.add("ann")
    fence = r.host.fence("ann")
    drain = asyncio.create_task(r.host.drain())
    await asyncio.sleep(100)
    assert not drain.done() and fence is not None and not fence.is_closed
    await r.host.stop()
    assert fence.is_closed and drain.done() and gone(r)
    assert r.hooks.releases() == ["ann drain fenced"]


@pytest.mark.proves("DR-09")
@pytest.mark.parametrize("is_late", [False, True], ids=["before it", "while it waits"])
@in_virtual_time
async def test_a_drain_whose_broker_is_gone_for_good_waits_for_no_turn_and_no_answer(is_late: bool) -> None:
    r = await started("ann", "bob")
    r.hooks.busy.add("ann")
    r.leases.silent.add("release")
    fence = r.host.fence("ann")
    assert fence is not None
    if not is_late:
        r.host.hurry("broker_gone")
    drain = asyncio.create_task(r.host.drain())
    if is_late:
        await asyncio.sleep(10)
        assert not drain.done() and not fence.is_closed
        r.host.hurry("broker_gone")
    began_at = r.clock.elapsed()
    await drain
    assert r.clock.elapsed() - began_at < 1.0
    assert fence.is_closed and "ann drain fenced" in r.hooks.releases()
    await r.host.stop()


@pytest.mark.proves("DR-10")
@in_virtual_time
async def test_start_and_stop_twice_are_no_ops_and_nothing_is_left_running() -> None:
    before = asyncio.all_tasks()
    r = await started("ann")
    running = asyncio.all_tasks()
    await r.host.start()
    assert asyncio.all_tasks() == running, "a second start starts no second loop"
    assert r.leases.claims() == ["ann"]
    await r.host.stop()
    asked = len(r.leases.asked)
    await r.host.stop()
    assert len(r.leases.asked) == asked
    assert asyncio.all_tasks() == before
    await r.host.start()
    assert r.host.held() == {} and gone(r)


@in_virtual_time
async def test_a_host_that_never_started_stops_and_drains() -> None:
    r = rig(seats_of("ann"))
    await r.host.drain()
    await r.host.stop()
    assert r.leases.claims() == []


@in_virtual_time
async def test_an_undead_seat_is_tried_once_more_by_a_drain_and_keeps_its_lease_if_that_fails() -> None:
    r = await started("ann", "bob")
    r.hooks.fails_release = {"ann", "bob"}
    await r.host.give_back("ann", "unprepared")
    await r.host.give_back("bob", "unprepared")
    r.hooks.fails_release = {"bob"}
    await r.host.drain()
    assert r.fleet.owner("ann") is None and r.fleet.owner("bob") == "a:1"
    await r.host.stop()


@pytest.mark.proves("PR-01")
@in_virtual_time
async def test_presence_counts_for_a_ttl_from_the_last_answered_renewal() -> None:
    r = await started()
    await asyncio.sleep(0.01)
    r.leases.down.update({"renew", "claim"})
    await asyncio.sleep(20)
    assert r.host.presence_held() and r.host.presence_trouble()
    await asyncio.sleep(15)
    assert not r.host.presence_held()
    r.leases.down.clear()
    await until(r.host.presence_held, within_s=10)
    assert r.host.presence_trouble() is None
    await r.host.stop()


@pytest.mark.proves("PR-03")
@in_virtual_time
async def test_a_node_that_shed_its_seats_is_announced_again_as_soon_as_it_resumes() -> None:
    r = await started("ann", "bob")
    r.hooks.busy.add("ann")
    await r.host.shed("shed")
    assert gone(r) and set(r.hooks.releases()) == {"ann shed fenced", "bob shed fenced"}
    await asyncio.sleep(60)
    assert gone(r) and r.host.held() == {}
    await r.host.resume()
    assert r.fleet.live("node:a") is not None
    await until(lambda: sorted(r.host.held()) == ["ann", "bob"], within_s=6)
    await r.host.stop()


@in_virtual_time
async def test_a_second_process_with_a_live_nodes_id_says_so_once_and_then_now_and_then() -> None:
    r = rig(seats_of("ann"))
    other = Lease("node:a", "a:other", 1, r.clock.now(), r.clock.now())
    r.fleet.write(other, 30.0)

    async def live() -> None:
        while True:
            await r.clock.sleep(10)
            r.fleet.write(other, 30.0)

    living = asyncio.create_task(live())
    with structlog.testing.capture_logs() as logs:
        await r.host.start()
        await r.clock.sleep(900)
    told = [line for line in logs if line["event"] in ("node_presence_refused", "node_id_taken")]
    assert [line["event"] for line in told] == ["node_presence_refused", *["node_id_taken"] * 3]
    assert {line["holder"] for line in told} == {"a:other"}
    assert "another live process (a:other) has the node id 'a'" in told[1]["reason"]
    assert r.host.id_rival() == "a:other" and not r.host.presence_held()
    assert r.leases.claims() == [], "one that the fleet does not count takes seats beyond its share"
    living.cancel()
    await until(r.host.presence_held, within_s=60)
    assert r.host.id_rival() is None
    await until(lambda: "ann" in r.host.held(), within_s=6)
    await r.host.stop()


@in_virtual_time
async def test_a_former_run_whose_presence_lapses_is_no_second_process() -> None:
    r = rig()
    r.fleet.write(Lease("node:a", "a:before", 1, r.clock.now(), r.clock.now()), 30.0)
    with structlog.testing.capture_logs() as logs:
        await r.host.start()
        await until(r.host.presence_held, within_s=60)
    events = [line["event"] for line in logs]
    assert events.count("node_presence_refused") == 1 and "node_id_taken" not in events
    await r.host.stop()


@in_virtual_time
async def test_programs_of_a_seat_whose_teardown_is_not_proven_end_before_its_node_stops_renewing() -> None:
    r = await started("ann")
    r.hooks.fails_release.add("ann")
    await r.host.drain()
    assert r.hooks.calls[-1] == "stop ann" and r.host.has_ended_all
    await r.host.stop()


@in_virtual_time
async def test_a_node_that_cannot_end_a_program_leaves_all_the_same_and_does_not_say_that_it_ended() -> None:
    r = await started("ann")
    r.hooks.fails_release.add("ann")
    r.hooks.fails_stop.add("ann")
    began = r.clock.elapsed()
    await r.host.drain()
    assert TTL_S / 3 <= r.clock.elapsed() - began < TTL_S / 2
    assert not r.host.has_ended_all
    await r.host.stop()


@in_virtual_time
async def test_a_node_that_sheds_lets_no_turn_go_on_while_the_store_takes_its_time() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    fence = r.host.fence("ann")
    assert fence is not None
    r.leases.delays["release node:a"] = 20.0
    shedding = asyncio.create_task(r.host.shed("stuck"))
    await asyncio.sleep(0.1)
    assert fence.is_closed
    await shedding
    assert r.hooks.releases() == ["ann stuck fenced"]
    assert r.fleet.owner("ann") is None
    await r.host.stop()
