"""When a turn may start, and what the consumer is told."""

import asyncio

import pytest
from host_rig import rig, seats_of

from crewlet.seats.admission import heartbeat_window_s, loop_period_s
from crewlet.testing.virtual import in_virtual_time, until


@pytest.mark.proves("AD-04")
@pytest.mark.parametrize("ttl_s", [1, 1.5, 3, 9, 30, 45, 120, 600])
@pytest.mark.parametrize("asked_s", [None, 0.2, 5.0, 1000.0])
def test_a_healthy_node_renews_within_its_own_window_with_time_for_the_answer(
    ttl_s: float, asked_s: float | None
) -> None:
    window_s = heartbeat_window_s(ttl_s, asked_s)
    period_s = loop_period_s(window_s)
    assert 0 < period_s < window_s
    assert window_s - period_s >= min(0.04, window_s / 5)
    assert window_s + period_s < ttl_s


@pytest.mark.proves("AD-11")
@pytest.mark.parametrize(
    ("ttl_s", "asked_s", "window_s"), [(9, None, 3), (120, None, 40), (30, 5, 5), (30, 25, 10), (1, None, 1 / 3)]
)
def test_the_window_is_a_third_of_the_ttl_or_what_was_asked_for_if_that_is_less(
    ttl_s: float, asked_s: float | None, window_s: float
) -> None:
    assert heartbeat_window_s(ttl_s, asked_s) == window_s


@pytest.mark.proves("AD-01")
@in_virtual_time
async def test_a_proof_older_than_the_window_starts_no_turn_and_the_seat_stays_held() -> None:
    r = rig(seats_of("ann"), heartbeat_s=5.0)
    await r.host.start()
    r.leases.silent.add("renew")
    await asyncio.sleep(4.9)
    assert r.host.may_start("ann") == 1
    await asyncio.sleep(1.1)
    assert r.host.may_start("ann") is None
    assert list(r.host.held()) == ["ann"]
    term = r.host.term("ann")
    assert term is not None and term.epoch == 1
    await r.host.stop()


@in_virtual_time
async def test_a_consumer_goes_on_at_once_when_what_its_deferral_waited_for_has_come() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    r.host.note_deferral("ann")
    r.host.reopen("ann")
    assert r.hooks.of("admits") == ["admits ann True"]
    r.host.reopen("ann")
    await asyncio.sleep(40)
    assert r.hooks.of("admits") == ["admits ann True"]
    await r.host.stop()


@in_virtual_time
async def test_what_a_deferral_waited_for_does_not_open_an_inbox_whose_renewals_fail() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    r.host.note_deferral("ann")
    r.leases.down.add("renew")
    await until(lambda: r.hooks.of("admits") == ["admits ann False"], within_s=20)
    assert r.host.may_start("ann") is not None
    r.host.reopen("ann")
    assert r.hooks.of("admits") == ["admits ann False"]
    await r.host.stop()


@pytest.mark.proves("AD-02")
@in_virtual_time
async def test_a_noted_deferral_resumes_the_consumer_once_at_the_next_renewal() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    r.host.note_deferral("ann")
    await asyncio.sleep(40)
    assert r.hooks.of("admits") == ["admits ann True"]
    await r.host.stop()


@in_virtual_time
async def test_a_deferral_whose_handler_still_runs_is_answered_after_it() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    r.host.note_deferral("ann")
    r.hooks.busy.add("ann")
    await asyncio.sleep(9)
    assert r.hooks.of("admits") == []
    r.hooks.busy.clear()
    await asyncio.sleep(9)
    assert r.hooks.of("admits") == ["admits ann True"]
    await r.host.stop()


@in_virtual_time
async def test_what_was_deferred_while_a_seat_was_established_goes_on_as_soon_as_it_is() -> None:
    r = rig(seats_of("ann"))
    r.hooks.acquire_takes["ann"] = 2.0
    starting = asyncio.create_task(r.host.start())
    await asyncio.sleep(1.9)
    assert r.host.may_start("ann") is None
    r.host.note_deferral("ann")
    await starting
    assert r.host.may_start("ann") == 1
    assert r.hooks.of("admits") == ["admits ann True"]
    await asyncio.sleep(40)
    assert r.hooks.of("admits") == ["admits ann True"]
    await r.host.stop()


@pytest.mark.proves("AD-02")
@in_virtual_time
async def test_a_renewal_while_a_seat_is_established_does_not_forget_what_was_deferred() -> None:
    r = rig(seats_of("ann"), heartbeat_s=5.0)
    r.hooks.acquire_takes["ann"] = 12.0
    starting = asyncio.create_task(r.host.start())
    await asyncio.sleep(1.0)
    r.host.note_deferral("ann")
    await starting
    assert "renew seat:ann" in r.leases.asked
    assert r.host.may_start("ann") == 1
    assert r.hooks.of("admits") == ["admits ann True"]
    await asyncio.sleep(40)
    assert r.hooks.of("admits") == ["admits ann True"]
    await r.host.stop()


@pytest.mark.proves("AD-03")
@in_virtual_time
async def test_asking_whether_a_turn_may_start_tells_the_consumer_nothing() -> None:
    r = rig(seats_of("ann"), heartbeat_s=5.0)
    await r.host.start()
    r.leases.delays["renew"] = 6.0
    await until(lambda: r.host.may_start("ann") is None, within_s=20)
    r.leases.delays.clear()
    await asyncio.sleep(30)
    assert r.host.may_start("ann") == 1
    assert r.hooks.of("admits") == []
    await r.host.stop()


@pytest.mark.proves("AD-05")
@in_virtual_time
async def test_an_outage_of_four_heartbeats_is_one_stop_and_one_resume() -> None:
    r = rig(seats_of("ann"), ttl_s=30.0, heartbeat_s=5.0)
    await r.host.start()
    r.leases.down.add("renew")
    await asyncio.sleep(20)
    r.leases.down.clear()
    await asyncio.sleep(20)
    assert r.hooks.of("admits") == ["admits ann False", "admits ann True"]
    assert r.host.may_start("ann") == 1
    await r.host.stop()


@in_virtual_time
async def test_an_election_costs_less_than_a_heartbeat() -> None:
    r = rig(seats_of("ann"), ttl_s=45.0)
    await r.host.start()
    r.leases.down.add("renew")
    await until(lambda: "admits ann False" in r.hooks.calls, within_s=20)
    await asyncio.sleep(7.5)
    r.leases.down.clear()
    await until(lambda: "admits ann True" in r.hooks.calls, within_s=1.5)
    await r.host.stop()


@pytest.mark.proves("AD-06")
@in_virtual_time
async def test_a_new_tenure_begins_with_no_edge_of_the_one_before() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    r.leases.down.add("renew")
    await until(lambda: "admits ann False" in r.hooks.calls, within_s=20)
    r.fleet.steal("ann")
    r.leases.down.clear()
    await until(lambda: r.host.held() == {}, within_s=20)
    r.fleet.drop("seat:ann")
    r.hooks.calls.clear()
    await until(lambda: "ann" in r.host.held(), within_s=20)
    await asyncio.sleep(20)
    assert r.hooks.of("admits") == []
    r.leases.down.add("renew")
    await asyncio.sleep(20)
    assert r.hooks.of("admits") == ["admits ann False"]
    await r.host.stop()


@pytest.mark.proves("AD-07")
@in_virtual_time
async def test_freshness_is_each_seats_own_and_a_slow_answer_makes_only_its_seat_stale() -> None:
    r = rig(seats_of("ann", "bob", "cyd"), ttl_s=45.0)
    await r.host.start()
    r.leases.late["renew seat:ann"] = 16.0
    await until(lambda: r.leases.asked.count("renew seat:ann") == 2, within_s=40)
    first = r.clock.elapsed()
    await asyncio.sleep(15.9)
    assert r.clock.elapsed() - first > 15
    assert r.host.may_start("ann") is None
    assert r.host.may_start("bob") == 1 and r.host.may_start("cyd") == 1
    await asyncio.sleep(30)
    assert sorted(r.host.held()) == ["ann", "bob", "cyd"]
    await r.host.stop()


@pytest.mark.proves("AD-09")
@in_virtual_time
async def test_a_seat_outlives_outages_shorter_than_its_ttl_and_no_longer_one() -> None:
    r = rig(seats_of("ann"), ttl_s=30.0)
    await r.host.start()
    for _ in range(2):
        r.leases.down.add("renew")
        await asyncio.sleep(20)
        r.leases.down.clear()
        await asyncio.sleep(9)
    assert "ann" in r.host.held() and r.hooks.releases() == []
    r.leases.down.add("renew")
    await asyncio.sleep(31)
    assert r.host.held() == {}
    assert r.hooks.releases() == ["ann lease_lost fenced"]
    await r.host.stop()


@pytest.mark.proves("WD-02")
@in_virtual_time
async def test_a_renewal_that_never_returns_stops_the_beat_and_an_outage_does_not() -> None:
    r = rig(seats_of("ann"), ttl_s=30.0)
    await r.host.start()
    r.leases.down.add("renew")
    await asyncio.sleep(100)
    assert r.clock.elapsed() - r.beats[-1] <= 8.1
    r.leases.down.clear()
    await until(lambda: "ann" in r.host.held(), within_s=60)
    r.leases.silent.add("renew")
    r.hooks.fails_stop.add("ann")
    await asyncio.sleep(100)
    assert r.clock.elapsed() - r.beats[-1] > 50
    await r.host.stop()
