"""A broker that stands still for longer than a lease lives, with renewals in flight, and then goes on."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from lease_fault_worlds import Fleet, Node, answer_of, at_last, fleet_on, granted_at_last, until

from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import Placement, Seat
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.term import Term
from crewlet.seats.host import HostConfig, SeatHost
from crewlet.seats.lease import Granted, Lease
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.leaseworld import granted

pytestmark = pytest.mark.real

TTL_S = 4.0


class Seats:
    """The node's part of a seat host: notes the terms it served and stopped."""

    def __init__(self) -> None:
        self.acquired: list[Term] = []
        self.stopped: set[Term] = set()

    async def on_acquire(self, term: Term, good_until: float) -> None:
        self.acquired.append(term)

    async def on_release(self, term: Term, *, reason: str, is_voluntary: bool) -> None:
        self.stopped.add(term)

    async def stop_programs(self, term: Term) -> None:
        self.stopped.add(term)

    def on_admission(self, handle: str, admits: bool) -> None: ...

    def on_established(self, term: Term) -> None: ...

    def on_renewed(self, term: Term, good_until: float) -> None: ...

    def is_busy(self, handle: str) -> bool:
        return False


@contextmanager
def frozen(server: Server) -> Generator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


async def test_a_broker_frozen_for_one_and_a_half_ttls_ends_every_tenure_and_its_late_renewals_bring_none_back(
    tmp_path: Path,
) -> None:
    with one_server(tmp_path) as server:
        async with fleet_on(server.urls, ttl_s=TTL_S) as fleet:
            node, peer = await fleet.node("n:1"), await fleet.node("m:1")
            host, seats = await host_on(fleet, "h:1", ["x", "y", "z"])
            try:
                await until(lambda: len(host.held()) == 3)
                leases = [granted(await node.claim(f"seat:s{n}")) for n in range(20)]
                fences = [host.fence(handle) for handle in ("x", "y", "z")]
                with frozen(server):
                    results = asyncio.gather(*(renewed_for(node, lease, 1.5 * TTL_S) for lease in leases))
                    await until(lambda: all(fence is not None and fence.is_closed for fence in fences))
                    await until(lambda: not host.held())
                    assert all(host.may_start(handle) is None for handle in ("x", "y", "z"))
                    await results
                assert not any(results.result()), "a renewal was answered by a broker that stood still"
                first_terms = tuple(seats.acquired)
                assert seats.stopped >= set(first_terms)
                for lease in leases:
                    assert await at_last(lambda lease=lease: node.renew(lease), lambda _: True) is False
                for lease in leases:
                    claim = await granted_at_last(lambda lease=lease: peer.claim(lease.resource))
                    assert claim.epoch == lease.epoch + 1
                await until(lambda: len(host.held()) == 3)
                assert {term.epoch for term in seats.acquired[3:]} == {2}
            finally:
                await host.stop()


async def renewed_for(node: Node, lease: Lease, seconds: float) -> bool:
    """Renew again and again, as a heartbeat does. Whether it ever counted."""
    clock = SystemClock()
    ends_at = clock.elapsed() + seconds
    counted = False
    while clock.elapsed() < ends_at:
        counted = bool(await answer_of(node.renew(lease))) or counted
        await asyncio.sleep(0.05)
    return counted


async def host_on(fleet: Fleet, owner: str, handles: Sequence[str]) -> tuple[SeatHost, Seats]:
    """A seat host of its own node, started."""
    node, seats = await fleet.node(owner), Seats()
    config = HostConfig(owner.partition(":")[0], owner, frozenset({"seats"}), {}, sweep_interval_s=0.3)
    company = [Seat(handle, placement=Placement()) for handle in handles]
    host = SeatHost(
        config,
        node.store,
        lambda: company,
        seats,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        deadline=NoDeadline(),
    )
    await host.start()
    return host, seats


async def test_a_renewal_that_a_thawed_broker_applies_after_the_lapse_is_not_counted_and_given_back(
    tmp_path: Path,
) -> None:
    """The renewal is on the wire when the broker stops, and is answered only after it goes on."""
    with one_server(tmp_path) as server:
        async with fleet_on(server.urls, ttl_s=TTL_S) as fleet:
            link = await fleet.link()
            node, peer = await fleet.node("n:1", link=link), await fleet.node("m:1")
            link.answer_pings()
            clock = SystemClock()
            leases = [granted(await node.claim(f"seat:s{n}")) for n in range(10)]
            claimed_at = clock.elapsed()
            with frozen(server):
                calls = [asyncio.create_task(answer_of(node.renew(lease))) for lease in leases]
                # The store counts from when it took a claim, which is after it was asked for.
                await until(lambda: clock.elapsed() > claimed_at + TTL_S)
            answers = await asyncio.gather(*calls)
            assert not any(answers)
            for lease in leases:
                assert await at_last(lambda lease=lease: node.renew(lease), lambda _: True) is False
                assert (await granted_at_last(lambda lease=lease: peer.claim(lease.resource))).epoch == 2
            assert isinstance(await peer.claim("seat:free"), Granted)
