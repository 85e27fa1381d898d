"""Leases on a real broker, each node through a connection of its own that can be made to fail."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import LEASE_PROTOCOL, ClaimResult, Granted, Lease
from crewlet.testing.faulty_link import FaultyLink
from crewlet.testing.history import History, RecordedLeases

TTL_S = 2.0
LIMIT_S = 45.0
"""How long any one thing may take before a test gives up. Never a verdict on speed."""

T = TypeVar("T")

_places = itertools.count(1)


@dataclass
class Node:
    """One process of a fleet, as far as leases go."""

    owner: str
    store: RecordedLeases
    leases: Cells
    epochs: Cells
    connection: Connection

    async def claim(self, resource: str, *, gated: bool = False) -> ClaimResult:
        return await self.store.claim(resource, self.owner, gated=gated)

    async def renew(self, lease: Lease) -> bool:
        return await self.store.renew(lease.resource, lease.owner, lease.epoch)

    async def release(self, lease: Lease) -> bool:
        return await self.store.release(lease.resource, lease.owner, lease.epoch)


@dataclass
class Fleet:
    """Nodes that share two buckets, and the history of what they did."""

    urls: tuple[str, ...]
    replicas: int
    ttl_s: float
    stack: AsyncExitStack
    history: History = field(default_factory=History)
    place: int = field(default_factory=lambda: next(_places))
    entropy: SystemEntropy = field(default_factory=SystemEntropy)

    @property
    def leases_spec(self) -> BucketSpec:
        return BucketSpec(f"leases_{self.place}", max_age_s=self.ttl_s)

    @property
    def epochs_spec(self) -> BucketSpec:
        return BucketSpec(f"epochs_{self.place}")

    async def connect(self, *urls: str, name: str = "node-test:1", clock: Clock | None = None) -> Connection:
        connection = await Connection.open(
            BrokerAddress(urls=urls or self.urls, name=name),
            clock=clock or SystemClock(),
            startup_timeout_s=LIMIT_S,
            replicas=self.replicas,
        )
        self.stack.push_async_callback(connection.close)
        return connection

    async def link(self, url: str | None = None) -> FaultyLink:
        return await self.stack.enter_async_context(FaultyLink(url or self.urls[0]))

    async def node(
        self,
        owner: str,
        *,
        link: FaultyLink | None = None,
        url: str | None = None,
        clock: Clock | None = None,
        protocol: int = LEASE_PROTOCOL,
    ) -> Node:
        """Another node, over a link where one is given."""
        clock = clock or SystemClock()
        urls = (link.url,) if link is not None else (url,) if url is not None else ()
        connection = await self.connect(*urls, name=owner, clock=clock)
        cells = NatsCells(connection, entropy=self.entropy)
        leases, epochs = await cells.open(self.leases_spec), await cells.open(self.epochs_spec)
        store = RecordedLeases(
            leases, epochs, history=self.history, clock=clock, entropy=self.entropy, protocol=protocol
        )
        self.stack.push_async_callback(store.stop)
        return Node(owner, store, leases, epochs, connection)

    async def lapse(self) -> None:
        """Let a TTL pass, and what the broker takes to notice."""
        await asyncio.sleep(self.ttl_s + 0.3)


@asynccontextmanager
async def fleet_on(urls: tuple[str, ...], *, replicas: int = 1, ttl_s: float = TTL_S) -> AsyncGenerator[Fleet]:
    """A fleet on fresh buckets. Its history is checked at the end."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(urls, replicas, ttl_s, stack)
        witness = await fleet.node("witness:1")
        async with fleet.history.following(witness.leases):
            yield fleet
            # The last word of the bucket, so that the history ends with it.
            await at_last(lambda: witness.claim("seat:the-end"), lambda answer: isinstance(answer, Granted))
    fleet.history.check()


async def answer_of(call: Awaitable[T]) -> T | None:
    """What was answered; None where it is unknown."""
    try:
        return await call
    except Unavailable:
        return None


async def at_last(ask: Callable[[], Awaitable[T]], is_good: Callable[[T], bool]) -> T:
    """Ask until the answer is good; unknown is asked again.

    Raises:
        TimeoutError: it never was.
    """
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await answer_of(ask())
            if answer is not None and is_good(answer):
                return answer
            await asyncio.sleep(0.02)


async def granted_at_last(claim: Callable[[], Awaitable[ClaimResult]]) -> Lease:
    """The lease, once the claim is granted."""
    answer = await at_last(claim, lambda answer: isinstance(answer, Granted))
    assert isinstance(answer, Granted)
    return answer.lease


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it never was so.
    """
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.005)
