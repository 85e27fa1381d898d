"""Where the checks of the lease layer run: three buckets, a clock, and ways to see them through faults."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from msgspec.structs import replace

from crewlet.ports.cells import Cells, Entry
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Unavailable
from crewlet.seats.dutyleases import DutyLeases
from crewlet.seats.lease import LEASE_PROTOCOL, ClaimRefused, ClaimResult, Granted, Lease
from crewlet.seats.leases import LeaseStore
from crewlet.seats.records import key_of
from crewlet.testing.faults import FaultyCells
from crewlet.testing.history import History, RecordedLeases

LIMIT_S = 20.0
"""How long any single thing may take before a check gives up on it. Never a verdict on speed."""


@dataclass
class LeasesWorld:
    """Fresh buckets.

    Attributes:
        leases: aged by the TTL.
        epochs: without an age.
        duties: entries bring their own age, up to 3 h.
        sleep: lets time pass, for the store too.
        history: of every call to the stores made here.
    """

    leases: Cells
    epochs: Cells
    duties: Cells
    clock: Clock
    entropy: Entropy
    sleep: Callable[[float], Awaitable[None]]
    history: History = field(default_factory=History)
    _stops: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])

    @property
    def ttl_s(self) -> float:
        assert self.leases.max_age_s is not None
        return self.leases.max_age_s

    def store(
        self, *, protocol: int = LEASE_PROTOCOL, leases: Cells | None = None, epochs: Cells | None = None
    ) -> LeaseStore:
        """A process of its own: another store over the same buckets, or over what a fault makes of them."""
        made = RecordedLeases(
            leases or self.leases,
            epochs or self.epochs,
            history=self.history,
            clock=self.clock,
            entropy=self.entropy,
            protocol=protocol,
        )
        self._stops.append(made.stop)
        return made

    def duty_leases(self) -> DutyLeases:
        made = DutyLeases(self.duties, self.epochs, clock=self.clock, entropy=self.entropy)
        self._stops.append(made.stop)
        return made

    def faulty(self, cells: Cells) -> FaultyCells:
        made = FaultyCells(cells, sleep=self.clock.sleep)
        self._stops.append(made.stop)
        return made

    async def lapse(self) -> None:
        """Let a TTL pass, with a little more."""
        await self.sleep(self.ttl_s + 0.05)

    async def raw(self, resource: str) -> Entry | None:
        """The record as the bucket has it."""
        return await self.leases.read(key_of(resource))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that is about to happen.

        Raises:
            TimeoutError: it does not.
        """
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                await self.clock.sleep(0.002)

    async def stop(self) -> None:
        for stop in reversed(self._stops):
            await stop()


MakeWorld = Callable[[], AbstractAsyncContextManager[LeasesWorld]]
"""Makes a world that nothing else uses."""


def granted(result: ClaimResult) -> Lease:
    """The lease of a claim that must have won."""
    assert isinstance(result, Granted), result
    return result.lease


def refused(result: ClaimResult, reason: str) -> ClaimRefused:
    """A claim that must have lost, for this reason."""
    assert isinstance(result, ClaimRefused), result
    assert result.reason == reason, result
    return result


async def claimed(claim: Awaitable[ClaimResult]) -> ClaimResult | None:
    """The answer of a claim; None where it is unknown."""
    try:
        return await claim
    except Unavailable:
        return None


async def abandon(task: "asyncio.Task[ClaimResult]") -> ClaimResult | None:
    """Cancel a call and wait for its clean-up. What it had already answered, if it had."""
    task.cancel()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait([task])
    return None if task.cancelled() or task.exception() is not None else task.result()


def unread(lease: Lease) -> Lease:
    """A lease without what a renewal changes, to compare tenures."""
    return replace(lease, expires_at=lease.acquired_at)
