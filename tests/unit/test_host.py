"""Taking seats, keeping them, giving them back."""

import asyncio

import pytest
from host_rig import rig, seats_of

from crewlet.testing.virtual import in_virtual_time, until


@pytest.mark.proves("SW-20")
@in_virtual_time
async def test_a_lone_node_takes_up_to_four_seats_before_start_returns() -> None:
    r = rig(seats_of("ann", "bob", "cyd", "dan"))

    await r.host.start()

    assert sorted(r.host.held()) == ["ann", "bob", "cyd", "dan"]
    assert r.hooks.of("established") == [f"established {h}" for h in ("ann", "bob", "cyd", "dan")]
    await r.host.stop()
    assert r.host.held() == {}


@in_virtual_time
async def test_a_held_seat_is_kept_for_an_hour() -> None:
    r = rig(seats_of("ann"))
    await r.host.start()
    await asyncio.sleep(3600)
    assert r.host.may_start("ann") == 1
    assert r.hooks.of("admits") == []
    await r.host.stop()
    assert r.fleet.owner("ann") is None


@in_virtual_time
async def test_drain_gives_everything_back() -> None:
    r = rig(seats_of("ann", "bob"))
    await r.host.start()
    r.hooks.busy.add("ann")
    drain = asyncio.create_task(r.host.drain())
    await until(lambda: r.fleet.owner("bob") is None)
    await asyncio.sleep(100)
    assert r.fleet.owner("ann") == "a:1"
    assert not r.host.presence_held()
    r.hooks.busy.clear()
    await drain
    assert r.fleet.owner("ann") is None
    await r.host.stop()
