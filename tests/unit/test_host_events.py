"""The log of one seat host under the names, fields and levels that operators and their alarms read."""

import asyncio
from typing import Any

import structlog
from host_rig import rig, seats_of

from crewlet.testing.virtual import in_virtual_time, until


def named(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [entry for entry in logs if entry["event"] == event]


@in_virtual_time
async def test_the_life_of_a_seat_is_told_with_its_epoch_and_why_it_ended() -> None:
    r = rig(seats_of("ann"))
    with structlog.testing.capture_logs() as logs:
        await r.host.start()
        await r.host.give_back("ann", "unprepared")
        await until(lambda: r.host.may_start("ann") == 2, within_s=6)
        r.fleet.steal("ann")
        await until(lambda: r.host.held() == {}, within_s=20)
    seat = [(e["event"], e["epoch"]) for e in logs if e.get("seat") == "ann" and e["log_level"] == "info"]
    assert seat == [
        ("seat_claimed", 1), ("seat_attached", 1), ("seat_detached", 1),
        ("seat_claimed", 2), ("seat_attached", 2), ("seat_detached", 2),
    ]  # fmt: skip
    assert [e["reason"] for e in named(logs, "seat_detached")] == ["unprepared", "lease_lost"]
    assert [(e["epoch"], e["log_level"]) for e in named(logs, "seat_lease_lost")] == [(2, "warning")]
    await r.host.stop()


@in_virtual_time
async def test_each_pass_is_told_with_what_is_held_against_the_shares_and_loudly_only_where_it_differs() -> None:
    r = rig(seats_of("ann", "bob"))
    with structlog.testing.capture_logs() as logs:
        await r.host.start()
        await asyncio.sleep(11)
        r.seats.pop()
        r.host.request_sweep()
        await asyncio.sleep(11)
    passes = named(logs, "seat_sweep")
    assert [(e["held"], e["capacity"], e["nodes"]) for e in passes[:3]] == [(2, 2, 1)] * 3
    assert passes[0]["claimed"] == ["ann", "bob"] and passes[1]["claimed"] == []
    assert [e["log_level"] for e in passes[:3]] == ["info", "debug", "debug"]
    gone = next(e for e in passes if e["lost"])
    assert (gone["lost"], gone["held"], gone["capacity"], gone["log_level"]) == (["bob"], 1, 1, "info")
    assert {e["log_level"] for e in passes[passes.index(gone) + 1 :]} == {"debug"}
    assert all(e["fleet_full"] is False and e["withheld"] == "" for e in passes)
    assert [(e["seat"], e["epoch"]) for e in named(logs, "seat_released_role_gone")] == [("bob", 1)]
    await r.host.stop()


@in_virtual_time
async def test_a_seat_whose_proof_has_grown_old_is_told_once_until_it_is_proven_again() -> None:
    r = rig(seats_of("ann"), heartbeat_s=5.0)
    await r.host.start()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            r.leases.down.add("renew")
            await until(lambda: r.host.may_start("ann") is None, within_s=20)
            assert r.host.may_start("ann") is None
            r.leases.down.clear()
            await until(lambda: r.host.may_start("ann") == 1, within_s=20)
    told = named(logs, "seat_admission_stale")
    assert [(e["seat"], e["epoch"], e["log_level"]) for e in told] == [("ann", 1, "warning")] * 2
    assert all(5.0 < e["age_s"] < 7.0 for e in told)
    await r.host.stop()
