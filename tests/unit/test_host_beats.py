"""The signs of life of a seat host's loops."""

import asyncio
import math

import pytest
from host_rig import rig, seats_of

from crewlet.kit.beats import Beats
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until


def watched(ttl_s: float) -> Beats:
    return Beats(VirtualClock().elapsed, ttl_s)


async def worst_over(beats: Beats, seconds: float) -> float:
    """The longest that any live loop had not turned for, at looks ten times a second."""
    worst = 0.0
    for _ in range(round(seconds * 10)):
        await asyncio.sleep(0.1)
        lag = beats.worst()
        worst = max(worst, 0.0 if lag is None else lag.seconds)
    return worst


@pytest.mark.proves("WD-04")
@in_virtual_time
async def test_a_host_at_rest_beats_every_second() -> None:
    beats = watched(30.0)
    r = rig(seats_of("ann"), ttl_s=30.0, watched=beats)
    await r.host.start()
    assert await worst_over(beats, 60) <= 1.01
    await r.host.stop()
    assert beats.worst() is None


@pytest.mark.proves("WD-02")
@in_virtual_time
async def test_a_renewal_that_never_returns_is_seen_a_ttl_after_it_was_sent() -> None:
    beats = watched(30.0)
    r = rig(seats_of("ann"), ttl_s=30.0, watched=beats)
    await r.host.start()
    r.leases.silent.add("renew seat:ann")
    r.hooks.fails_stop.add("ann")
    asked = r.leases.asked.count("renew seat:ann")
    await until(lambda: r.leases.asked.count("renew seat:ann") > asked, within_s=40)
    sent_at = r.clock.elapsed()
    await until(lambda: (lag := beats.worst()) is not None and lag.seconds > 30.0, within_s=40)
    assert r.clock.elapsed() - sent_at <= 31.0
    lag = beats.worst()
    assert lag is not None and lag.name == "heartbeat"


@in_virtual_time
async def test_a_store_that_is_away_for_two_ttls_wedges_nobody() -> None:
    beats = watched(30.0)
    r = rig(seats_of("ann", "bob"), ttl_s=30.0, watched=beats)
    await r.host.start()
    r.leases.down.update(("renew", "claim", "list", "release"))
    assert await worst_over(beats, 60) < 25.0
    r.leases.down.clear()
    await until(lambda: len(r.host.held()) == 2, within_s=90)
    await r.host.stop()


@in_virtual_time
async def test_a_pass_that_never_ends_is_seen_and_seats_that_are_slow_to_come_are_not() -> None:
    beats = watched(30.0)
    r = rig(seats_of("ann"), ttl_s=30.0, watched=beats)
    r.hooks.acquire_takes["ann"] = 80.0
    await r.host.start()
    assert await worst_over(beats, 60) <= 1.01
    r.leases.silent.add("list")
    await until(lambda: (lag := beats.worst()) is not None and lag.seconds > 30.0, within_s=60)
    lag = beats.worst()
    assert lag is not None and lag.name == "sweep"


@in_virtual_time
async def test_claims_that_ask_the_store_many_times_are_no_wedge_and_one_that_is_never_answered_is() -> None:
    beats = watched(30.0)
    r = rig(seats_of("ann", "bob"), ttl_s=30.0, watched=beats)
    await r.host.start()
    await until(lambda: len(r.host.held()) == 2, within_s=30)
    r.fleet.drop("seat:ann")
    r.fleet.drop("node:a")
    r.leases.delays.update({"claim": 45.0, "hints": 20.0, "list": 20.0})
    assert await worst_over(beats, 240) <= 20.1
    assert "claim seat:ann" in r.leases.asked[-20:]
    r.leases.delays.clear()
    await until(lambda: len(r.host.held()) == 2, within_s=90)
    r.leases.silent.add("claim seat:ann")
    r.fleet.drop("seat:ann")
    await until(lambda: (lag := beats.worst()) is not None and lag.seconds > 30.0, within_s=240)
    lag = beats.worst()
    assert lag is not None and lag.name == "sweep"


def test_nobody_who_watches_means_no_beats_between_passes() -> None:
    assert Beats(lambda: 0.0, math.inf).beat_s == math.inf
