"""Passes of a node that some seats are pinned to: each group of seats has a share of its own."""

import pytest
from host_rig import Fleet, Rig, passes, peer_row, rig, seats_of

from crewlet.company.model import Placement, Seat
from crewlet.testing.virtual import VirtualClock, in_virtual_time


def satellite_fleet() -> tuple[Fleet, list[Seat]]:
    seats = [*seats_of("a", "b"), *seats_of("zed", placement=Placement(node="sat"))]
    return Fleet(VirtualClock()), seats


def satellite(releases_per_sweep: int = 2) -> Rig:
    """A satellite in a company where z0 and z1 ask for one, and a0 and a1 run anywhere."""
    pinned = Placement(labels=(("kind", "sat"),))
    seats = [*seats_of("a0", "a1"), *seats_of("z0", "z1", placement=pinned)]
    return rig(seats, node_id="s1", labels={"kind": "sat"}, releases_per_sweep=releases_per_sweep)


@pytest.mark.proves("SW-01")
@in_virtual_time
async def test_a_pinned_seat_is_served_although_its_node_sweeps_first() -> None:
    fleet, seats = satellite_fleet()
    rigs = [rig(seats, fleet=fleet, node_id=node, claims_per_sweep=1) for node in ("sat", "c1", "c2")]
    for r in rigs:
        await r.host.start()
    for r in rigs:
        await passes(r, 3)
    held = [sorted(r.host.held()) for r in rigs]
    assert "zed" in held[0]
    assert sorted(handle for each in held for handle in each) == ["a", "b", "zed"]
    assert all(r.host.last_sweep is not None and r.host.last_sweep.unplaceable == () for r in rigs)
    for r in rigs:
        await r.host.stop()


@pytest.mark.proves("SW-02")
@in_virtual_time
async def test_a_full_satellite_sheds_and_claims_its_pinned_seat_in_one_pass() -> None:
    fleet, seats = satellite_fleet()
    r = rig(seats, fleet=fleet, node_id="sat")
    fleet.steal("zed")
    await r.host.start()
    assert sorted(r.host.held()) == ["a", "b"]
    fleet.drop("seat:zed")
    peer_row(fleet, "core")
    await passes(r)
    assert r.hooks.releases() == ["a rebalance voluntary"]
    assert sorted(r.host.held()) == ["b", "zed"]
    await r.host.stop()


@pytest.mark.proves("SW-15")
@in_virtual_time
async def test_the_share_of_one_group_is_no_room_in_another() -> None:
    eu = Placement(labels=(("zone", "eu"),))
    seats = [*seats_of("f0", "f1", "f2"), *seats_of("eu0", "eu1", placement=eu)]
    r = rig(seats, labels={"zone": "eu"})
    peer_row(r.fleet, "b", labels={"zone": "eu"})
    peer_row(r.fleet, "c")
    await r.host.start()
    await passes(r, 2)
    assert sorted(r.host.held()) == ["eu0", "f0"]
    await r.host.stop()


@pytest.mark.proves("SW-19")
@in_virtual_time
async def test_a_shed_that_cannot_be_proven_is_not_lost_and_not_made_up_for() -> None:
    r = rig(seats_of("a", "b", "c", "d"), releases_per_sweep=1)
    await r.host.start()
    r.hooks.fails_release.add("a")
    for node in ("x", "y", "z"):
        peer_row(r.fleet, node)
    await passes(r)
    record = r.host.last_sweep
    assert record is not None and record.lost == ()
    assert r.hooks.releases()[0] == "a rebalance voluntary"
    assert sorted(r.host.held()) == ["b", "c", "d"]
    await r.host.stop()


@pytest.mark.proves("SW-16")
@in_virtual_time
async def test_the_least_constrained_group_gives_back_first() -> None:
    r = satellite(releases_per_sweep=1)
    await r.host.start()
    assert len(r.host.held()) == 4
    peer_row(r.fleet, "s2", labels={"kind": "sat"})
    peer_row(r.fleet, "core")
    await passes(r, 2)
    assert r.hooks.releases() == ["a0 rebalance voluntary", "z0 rebalance voluntary"]
    await r.host.stop()


@pytest.mark.proves("SW-18")
@in_virtual_time
async def test_a_stuck_seat_is_charged_first_and_to_its_own_group() -> None:
    r = satellite()
    fleet = r.fleet
    r.hooks.fails_release.add("z0")
    await r.host.start()
    await r.host.give_back("z0", "unprepared")
    peer_row(fleet, "s2", labels={"kind": "sat"})
    await passes(r)
    assert list(r.host.held()) == ["a1"]
    given_back = [call for call in r.hooks.releases() if not call.startswith("z0")]
    assert given_back == ["a0 rebalance voluntary", "z1 rebalance voluntary"]
    await r.host.stop()


@pytest.mark.proves("SW-17")
@in_virtual_time
async def test_a_stuck_pinned_seat_takes_up_the_share_of_its_group() -> None:
    r = satellite()
    fleet = r.fleet
    r.hooks.fails_release.add("z0")
    peer_row(fleet, "s2", labels={"kind": "sat"})
    fleet.steal("a0")
    fleet.steal("a1")
    await r.host.start()
    assert list(r.host.held()) == ["z0"]
    await r.host.give_back("z0", "unprepared")
    fleet.drop("seat:a0")
    fleet.drop("seat:a1")
    await passes(r, 3)
    assert list(r.host.held()) == ["a0"]
    assert "z1" not in r.leases.claims()
    await r.host.stop()
