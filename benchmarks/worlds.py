"""The brokers that figures are taken on: one server, and a cluster of three."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells
from crewlet.seats.leases import LeaseStore
from crewlet.testing.brokers import Cluster, Server, one_server, three_members

Name = Literal["r1", "r3"]
NAMES: tuple[Name, ...] = ("r1", "r3")
"""By the replicas of each bucket."""

LEASES_TTL_S = 3600.0
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class World:
    """Running brokers and one connection to them.

    Attributes:
        urls: of the servers.
        replicas: of every bucket.
    """

    brokers: Server | Cluster
    urls: tuple[str, ...]
    replicas: int
    connection: Connection
    clock: SystemClock
    entropy: SystemEntropy

    @classmethod
    @asynccontextmanager
    async def open(cls, name: Name) -> "AsyncGenerator[World]":
        """Start the brokers and connect; everything is ended on the way out."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            brokers = stack.enter_context(one_server(folder) if name == "r1" else three_members(folder))
            replicas = 1 if name == "r1" else 3
            clock = SystemClock()
            connection = await Connection.open(
                BrokerAddress(urls=brokers.urls, name="bench:1"), clock=clock, startup_timeout_s=30, replicas=replicas
            )
            try:
                yield cls(brokers, brokers.urls, replicas, connection, clock, SystemEntropy())
            finally:
                await connection.close()

    async def cells(self, bucket: str, max_age_s: float | None = None) -> Cells:
        return await NatsCells(self.connection, entropy=self.entropy).open(BucketSpec(bucket, max_age_s))

    async def leases(self, bucket: str) -> LeaseStore:
        """A store over buckets of its own."""
        records = await self.cells(f"{bucket}_leases", LEASES_TTL_S)
        counters = await self.cells(f"{bucket}_epochs")
        return LeaseStore(records, counters, clock=self.clock, entropy=self.entropy)

    async def restart(self) -> None:
        """End every server politely and start it again; returns when all listen, which is before they serve."""
        await asyncio.to_thread(self._restart)

    def _restart(self) -> None:
        match self.brokers:
            case Server():
                self.brokers.restart(wait=False)
            case Cluster(members):
                for member in range(len(members)):
                    self.brokers.terminate(member)
                for member in range(len(members)):
                    self.brokers.restart(member, wait=False)


async def hold(store: LeaseStore, owner: str, resources: Sequence[str]) -> dict[str, int]:
    """Claim many leases; their epochs by resource."""
    epochs: dict[str, int] = {}
    waiting = iter(resources)

    async def work() -> None:
        for resource in waiting:
            result = await store.claim(resource, owner, preferred="bench")
            epochs[resource] = granted_epoch(result)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return epochs


def granted_epoch(result: object) -> int:
    """The epoch of a claim that must have been granted."""
    from crewlet.seats.lease import Granted

    if not isinstance(result, Granted):
        raise RuntimeError(f"a claim that nothing stands against was refused: {result}")
    return result.lease.epoch
