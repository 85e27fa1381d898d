"""Roles of the fleet that no live node has."""

import asyncio
from typing import Any

import structlog
from node_rig import Fleet

from crewlet.node.fleetwatch import TELL_AFTER_S
from crewlet.testing.virtual import in_virtual_time

SEATS_ONLY = frozenset({"data", "ingress", "seats"})


def told(logs: list[Any]) -> list[tuple[str, str, str]]:
    return [(e["event"], e["role"], e["log_level"]) for e in logs if e["event"].startswith("fleet_role_")]


@in_virtual_time
async def test_a_role_that_no_live_node_has_is_told_once_and_again_when_one_has_it() -> None:
    fleet = Fleet(("ann",), roles=SEATS_ONLY)
    with structlog.testing.capture_logs() as logs:
        await fleet.node("n1")
        await asyncio.sleep(TELL_AFTER_S - 10)
        assert told(logs) == []
        await asyncio.sleep(600)
        assert told(logs) == [("fleet_role_unmanned", "workers", "warning")]
        fleet.roles = frozenset({"workers"})
        await fleet.node("n2")
        await asyncio.sleep(10)
    told_by_one = [entry for entry in told(logs) if entry[0] == "fleet_role_manned"]
    assert told_by_one == [("fleet_role_manned", "workers", "info")]
    await fleet.close()


@in_virtual_time
async def test_a_fleet_that_is_replaced_node_by_node_tells_nothing() -> None:
    fleet = Fleet(("ann",), roles=SEATS_ONLY)
    with structlog.testing.capture_logs() as logs:
        await fleet.node("n1")
        await asyncio.sleep(TELL_AFTER_S / 2)
        fleet.roles = frozenset({"workers"})
        await fleet.node("n2")
        await asyncio.sleep(TELL_AFTER_S)
        await fleet.stop("n2")
        await asyncio.sleep(TELL_AFTER_S / 2)
        await fleet.node("n2", incarnation=2)
        await asyncio.sleep(TELL_AFTER_S)
    assert told(logs) == []
    await fleet.close()
