"""What an idle pass asks of the broker: 2,001 seats on two nodes, of which one has room for a seat that nobody has.

The hosts run without mail, and with leases so long that no heartbeat falls into the count: what is left on their
connections is the passes. The broker's own statistics count.
"""

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.fleets import company_of, until
from benchmarks.worlds import LEASES_TTL_S, World
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.company.model import Seat
from crewlet.ports.cells import BucketSpec
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.term import Term
from crewlet.seats.host import HostConfig, SeatHost
from crewlet.seats.leases import LeaseStore
from crewlet.testing.brokers import Server

SEATS = 2001
PASSES = 10
_INTERVAL_S = 1.0


async def measure() -> dict[str, Any]:
    """`idle_msgs_per_sweep`: from the node to the broker; `idle_answers_per_sweep`: back."""
    async with World.open("r1") as world:
        seats = company_of(SEATS).seats
        connections = {name: await _connect(world, name) for name in ("a", "b")}
        hosts = {name: await _host(world, name, connection, seats) for name, connection in connections.items()}
        await asyncio.gather(*(host.start() for host in hosts.values()))
        await until(lambda: sum(len(host.held()) for host in hosts.values()) == SEATS)
        roomy = min(hosts, key=lambda name: len(hosts[name].held()))
        await _next_full_pass(hosts[roomy])
        before = await asyncio.to_thread(_counts, world, roomy)
        for _ in range(PASSES):
            await _next_full_pass(hosts[roomy])
        after = await asyncio.to_thread(_counts, world, roomy)
        await asyncio.gather(*(host.stop() for host in hosts.values()))
        for connection in connections.values():
            await connection.close()
    return {
        "idle_msgs_per_sweep": (after["in_msgs"] - before["in_msgs"]) / PASSES,
        "idle_answers_per_sweep": (after["out_msgs"] - before["out_msgs"]) / PASSES,
    }


async def _next_full_pass(host: SeatHost) -> None:
    """Wait until one more pass has found the fleet full, and is over."""
    last = host.last_sweep
    await until(lambda: host.last_sweep is not last and host.last_sweep is not None and host.last_sweep.is_fleet_full)
    await asyncio.sleep(0.2 * _INTERVAL_S)


def _counts(world: World, name: str) -> Mapping[str, int]:
    assert isinstance(world.brokers, Server)
    with urllib.request.urlopen(f"{world.brokers.broker.monitor_url}/connz", timeout=10) as answer:
        connections = json.load(answer)["connections"]
    (found,) = [each for each in connections if each.get("name") == _owner(name)]
    return found


async def _connect(world: World, name: str) -> Connection:
    address = BrokerAddress(urls=world.urls, name=_owner(name))
    return await Connection.open(address, clock=world.clock, startup_timeout_s=30)


async def _host(world: World, name: str, connection: Connection, seats: Sequence[Seat]) -> SeatHost:
    cells = NatsCells(connection, entropy=world.entropy)
    store = LeaseStore(
        await cells.open(BucketSpec("crewlet_leases", LEASES_TTL_S)),
        await cells.open(BucketSpec("crewlet_epochs")),
        clock=world.clock,
        entropy=world.entropy,
    )
    config = HostConfig(
        name, _owner(name), frozenset({"seats"}), {}, sweep_interval_s=_INTERVAL_S, claims_per_sweep=SEATS
    )
    return SeatHost(
        config, store, lambda: seats, _NoHooks(), clock=world.clock, entropy=world.entropy, deadline=NoDeadline()
    )


def _owner(name: str) -> str:
    return f"{name}:1"


class _NoHooks:
    """Seats in which nothing runs."""

    async def on_acquire(self, term: Term, good_until: float) -> None:
        pass

    async def on_release(self, term: Term, *, reason: str, is_voluntary: bool) -> None:
        pass

    async def stop_programs(self, term: Term) -> None:
        pass

    def on_admission(self, handle: str, admits: bool) -> None:
        pass

    def on_established(self, term: Term) -> None:
        pass

    def on_renewed(self, term: Term, good_until: float) -> None:
        pass

    def is_busy(self, handle: str) -> bool:
        return False
