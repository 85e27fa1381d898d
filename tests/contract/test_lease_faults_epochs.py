"""A company with a long past: twenty thousand counters that no lease needs any more."""

import asyncio

import pytest
from lease_fault_worlds import Fleet, Node, fleet_on

from crewlet.adapters.system.clock import SystemClock
from crewlet.ports.cells import Done
from crewlet.seats.records import EpochRecord, encode, key_of
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.leaseworld import granted, refused
from crewlet.testing.faults import FaultyCells
from crewlet.testing.history import RecordedLeases

pytestmark = pytest.mark.real

KEYS = 20_000
AT_ONCE = 500


async def test_twenty_thousand_epochs_leave_claims_hints_and_listings_right_and_claims_as_cheap(
    server: Server,
) -> None:
    async with fleet_on(server.urls, ttl_s=60.0) as fleet:
        node, peer = await fleet.node("n:1"), await fleet.node("m:1")
        few = await requests_of_ten_claims(fleet, node, "few")
        await fill(node)
        assert await requests_of_ten_claims(fleet, node, "many") == few
        lease = granted(await node.claim("seat:past7", gated=True))
        assert lease.epoch == 8, "the counter of a seat long gone goes on"
        refused(await peer.claim("seat:past7"), "held")
        mine = {f"seat:past{n}" for n in range(0, KEYS, 1_000)} | {
            f"seat:{n}{k}" for n in ("few", "many") for k in range(10)
        }
        assert await node.store.hints("n", "seat") == mine
        assert await node.store.hints("nobody", "seat") == set()
        held = {lease.resource for lease in await node.store.list_live("seat")}
        assert held == {"seat:past7"} | {f"seat:{name}{n}" for name in ("few", "many") for n in range(10)}


async def fill(node: Node) -> None:
    for start in range(0, KEYS, AT_ONCE):
        writes = [
            node.epochs.create(
                key_of(f"seat:past{n}"), encode(EpochRecord(epoch=n, preferred="n" if n % 1_000 == 0 else "other"))
            )
            for n in range(start, start + AT_ONCE)
        ]
        assert all(isinstance(result, Done) for result in await asyncio.gather(*writes))
    assert (await node.epochs.mark()).last_revision > KEYS


async def requests_of_ten_claims(fleet: Fleet, node: Node, name: str) -> list[tuple[str, str]]:
    """What ten gated claims ask of the store, the seats' names left out."""
    leases, epochs = FaultyCells(node.leases), FaultyCells(node.epochs)
    store = RecordedLeases(leases, epochs, history=fleet.history, clock=SystemClock(), entropy=fleet.entropy)
    try:
        await store.protocol_floor()
        leases.calls.clear()
        for n in range(10):
            granted(await store.claim(f"seat:{name}{n}", "n:1", preferred="n", gated=True))
        return [(cells.name, call.verb) for cells in (leases, epochs) for call in cells.calls]
    finally:
        await store.stop()
