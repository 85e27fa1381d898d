"""Seats that a peer says it has given back, between two passes."""

import asyncio

from host_rig import peer_row, rig, seats_of

from crewlet.seats.host import Freed
from crewlet.seats.news import Standing
from crewlet.testing.virtual import in_virtual_time, until


def news(*handles: str, standing: Standing = "stays") -> Freed:
    """What the peer x says that it gave back."""
    return Freed("x:1", "x", handles, standing)


@in_virtual_time
async def test_a_seat_heard_to_be_free_is_claimed_at_once_past_the_counts() -> None:
    r = rig(seats_of("a", "b"), sweep_interval_s=60.0)
    peer_row(r.fleet, "x", seats_held=2)
    r.fleet.steal("a")
    r.fleet.steal("b")
    await r.host.start()
    record = r.host.last_sweep
    assert record is not None and record.is_fleet_full
    r.fleet.drop("seat:b")
    r.host.hear_freed(news("b", "gone"))
    await until(lambda: "b" in r.host.held(), within_s=0.1)
    assert r.leases.claims() == ["b"]
    row = r.fleet.live("node:a")
    assert row is not None and row.meta["seats_held"] == 1
    await r.host.stop()


@in_virtual_time
async def test_a_leaving_peers_seats_are_shared_as_if_it_were_gone() -> None:
    r = rig(seats_of("a", "b"), sweep_interval_s=60.0)
    peer_row(r.fleet, "x", seats_held=1)
    r.fleet.steal("b")
    await r.host.start()
    assert list(r.host.held()) == ["a"]
    r.fleet.drop("seat:b")
    r.host.hear_freed(news("b"))
    await asyncio.sleep(1)
    assert list(r.host.held()) == ["a"], "no room while the peer counts"
    r.host.hear_freed(news("b", standing="gone"))
    await until(lambda: sorted(r.host.held()) == ["a", "b"], within_s=0.1)
    await r.host.stop()


@in_virtual_time
async def test_no_interval_wins_more_than_four_early_claims_besides_the_passs_own() -> None:
    handles = [f"s{n:02}" for n in range(30)]
    r = rig(seats_of(*handles))
    await r.host.start()
    won = [len(r.host.held())]
    r.host.hear_freed(news(*handles))
    r.host.request_sweep()
    await asyncio.sleep(1)
    r.host.hear_freed(news(*handles))
    await asyncio.sleep(1)
    won.append(len(r.host.held()))
    await asyncio.sleep(4.5)
    won.append(len(r.host.held()))
    assert won == [4, 8, 12]
    await r.host.stop()


@in_virtual_time
async def test_a_release_is_told_once_the_store_and_the_counts_say_so() -> None:
    told: list[tuple[tuple[str, ...], str | None, object]] = []
    r = rig(seats_of("a", "b"), sweep_interval_s=60.0)

    def tell(freed: Freed) -> None:
        row = r.fleet.live("node:a")
        told.append((freed.seats, r.fleet.owner(freed.seats[0]), row.meta["seats_held"] if row else None))

    r.freed.append(tell)
    await r.host.start()
    await r.host.give_back("a", "unprepared")
    await r.host.drain()
    assert told == [(("a",), None, 1), (("b",), None, None)]
    await r.host.stop()
