"""The history of every call to the leases and of every write in their bucket, and what must be true of any.

The checks take no side: they hold for any implementation, on any store, under any faults. What an owner is entitled to
is counted as the owner must count it: from before it asked, and nothing that was answered after its own deadline.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import msgspec

from crewlet.ports.cells import Cells, Put
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.seats.lease import LEASE_PROTOCOL, ClaimResult, Granted
from crewlet.seats.leases import LeaseStore
from crewlet.seats.records import LeaseRecord, resource_of

UNANSWERED = float("inf")


@dataclass(slots=True, eq=False)
class Call:
    """One call of one owner.

    Attributes:
        epoch: the one asked about; None of a claim.
        ttl_s: how long the lease is asked for.
        asked_at, answered_at: readings of `Clock.elapsed`; `UNANSWERED` while none came.
        answer: None where nobody knows: unavailable, cancelled, or still under way.
    """

    verb: Literal["claim", "renew", "release"]
    resource: str
    owner: str
    epoch: int | None
    ttl_s: float
    asked_at: float
    answered_at: float = UNANSWERED
    answer: ClaimResult | bool | None = None

    @property
    def granted_epoch(self) -> int | None:
        return self.answer.lease.epoch if isinstance(self.answer, Granted) else None


@dataclass(frozen=True, slots=True)
class StoredLease:
    """One write of a tenure, as the bucket had it."""

    resource: str
    owner: str
    epoch: int
    is_released: bool
    revision: int


@dataclass(slots=True, eq=False)
class Entitlement:
    """The time in which an owner may act at an epoch, by its own count."""

    resource: str
    owner: str
    epoch: int
    since: float
    until: float
    is_released: bool = False


@dataclass
class History:
    """What was asked and answered, and what the bucket held, in the order of its revisions."""

    calls: list[Call] = field(default_factory=list[Call])
    writes: list[StoredLease] = field(default_factory=list[StoredLease])

    @contextlib.asynccontextmanager
    async def following(self, cells: Cells) -> AsyncGenerator[None]:
        """Record the bucket meanwhile, through a client that sees no faults. A watch may skip all but the newest."""
        following = asyncio.create_task(self._follow(cells), name="history")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])
            if not following.cancelled() and (error := following.exception()) is not None:
                raise error

    async def _follow(self, cells: Cells) -> None:
        async with cells.watch() as events:
            async for event in events:
                if not isinstance(event, Put):
                    continue
                record = msgspec.json.decode(event.entry.value, type=LeaseRecord)
                resource = resource_of(event.entry.key)
                if resource is not None and record.epoch > 0:
                    self.writes.append(
                        StoredLease(resource, record.owner, record.epoch, record.released, event.entry.revision)
                    )

    def entitlements(self) -> list[Entitlement]:
        """Who could act when. A renewal that was answered after its holder's own deadline prolongs nothing."""
        found: list[Entitlement] = []
        current: dict[tuple[str, str, int], Entitlement] = {}
        # An answer counts when it comes; a release ends a tenure when it is asked for.
        for call in sorted(self.calls, key=lambda call: call.asked_at if call.verb == "release" else call.answered_at):
            epoch = call.granted_epoch if call.verb == "claim" else call.epoch
            if epoch is None:
                continue
            key = (call.resource, call.owner, epoch)
            mine = current.get(key)
            good_until = call.asked_at + call.ttl_s
            if call.verb == "release":
                if mine is not None:
                    mine.until, mine.is_released = min(mine.until, call.asked_at), True
            elif call.answer is False or call.answer is None:
                continue
            elif mine is not None and not mine.is_released and call.answered_at < mine.until:
                mine.until = max(mine.until, good_until)
            elif call.verb == "claim" and call.answered_at < good_until:
                current[key] = Entitlement(call.resource, call.owner, epoch, call.answered_at, good_until)
                found.append(current[key])
        return found

    def good_until(self, resource: str, owner: str, epoch: int) -> float:
        """Until when an owner could act at an epoch; 0 where it never could."""
        ours = [e for e in self.entitlements() if (e.resource, e.owner, e.epoch) == (resource, owner, epoch)]
        return max((entitlement.until for entitlement in ours), default=0.0)

    def check(self) -> None:
        """Raises AssertionError with the calls that contradict each other."""
        one_holder_an_epoch(self)
        epochs_only_grow(self)
        nobody_acts_beside_another(self)
        no_tenure_is_refused_early(self)
        no_phantom_holds(self)


def one_holder_an_epoch(history: History) -> None:
    """An epoch of a resource has one owner, in the answers and in the bucket."""
    owners: dict[tuple[str, int], set[str]] = defaultdict(set)
    for call in history.calls:
        if (epoch := call.granted_epoch) is not None:
            owners[call.resource, epoch].add(call.owner)
    for write in history.writes:
        # A claim that was given back leaves a released record with the last epoch there was.
        if not write.is_released:
            owners[write.resource, write.epoch].add(write.owner)
    shared = {key: names for key, names in owners.items() if len(names) > 1}
    assert not shared, f"epochs with several owners: {shared}"


def epochs_only_grow(history: History) -> None:
    """In the order of the bucket's writes, and for whoever asks after another was answered."""
    for resource, writes in _by_resource(history.writes).items():
        for one, later in pairwise(sorted(writes, key=lambda write: write.revision)):
            assert one.epoch <= later.epoch, f"{resource}: {one} was followed by {later}"
    for calls in _by_resource(history.calls).values():
        grants = sorted((call for call in calls if call.granted_epoch is not None), key=lambda call: call.answered_at)
        for call in calls:
            epoch = call.granted_epoch if call.verb == "claim" else call.epoch if call.answer is True else None
            if epoch is None:
                continue
            before = [grant for grant in grants if grant.answered_at < call.asked_at and grant is not call]
            highest = max((grant.granted_epoch or 0 for grant in before), default=0)
            # A release of a tenure long gone may be true to say; only one that works under it may not.
            assert epoch >= highest or call.verb == "release", f"{call} although {highest} was granted before"
    for call in history.calls:
        if call.verb == "release" and call.answer is True:
            later = [c for c in history.calls if c.granted_epoch == call.epoch and c.asked_at > call.answered_at]
            again = [c for c in later if c.resource == call.resource]
            assert not again, f"{again[0]} although that epoch was released: {call}"


def nobody_acts_beside_another(history: History) -> None:
    """No two owners are entitled to the same resource at one instant."""
    for entitlements in _by_resource(history.entitlements()).values():
        ours = sorted(entitlements, key=lambda entitlement: entitlement.since)
        for place, one in enumerate(ours):
            for other in ours[place + 1 :]:
                is_apart = one.until <= other.since or one.owner == other.owner
                assert is_apart, f"both may act: {one} and {other}"


def no_tenure_is_refused_early(history: History) -> None:
    """Who asks while it is entitled, and answered while it still is, is not told that it is not the holder."""
    entitlements = _by_resource(history.entitlements())
    for call in history.calls:
        if call.verb != "renew" or call.answer is not False:
            continue
        for entitlement in entitlements.get(call.resource, ()):
            if (entitlement.owner, entitlement.epoch) == (call.owner, call.epoch):
                is_inside = entitlement.since <= call.asked_at and call.answered_at < entitlement.until
                assert not is_inside, f"{call} although entitled: {entitlement}"


def no_phantom_holds(history: History) -> None:
    """Every tenure in the bucket is one that its owner was told of, or was left without an answer about."""
    calls = _by_resource(history.calls)
    for write in history.writes:
        of_owner = [c for c in calls.get(write.resource, ()) if c.owner == write.owner]
        claims = [c for c in of_owner if c.verb == "claim"]
        is_known = any(c.granted_epoch == write.epoch or c.answer is None for c in claims)
        assert is_known or write.is_released, f"nobody knows of {write}"
    for call in history.calls:
        if call.verb == "release" and call.answer is True:
            writes = [w for w in history.writes if (w.resource, w.owner) == (call.resource, call.owner)]
            of_tenure = sorted((w for w in writes if w.epoch == call.epoch), key=lambda w: w.revision)
            assert not of_tenure or of_tenure[-1].is_released, f"{of_tenure[-1]} came after {call}"


class RecordedLeases(LeaseStore):
    """A lease store whose every claim, renewal and release goes into a history."""

    def __init__(
        self,
        leases: Cells,
        epochs: Cells,
        *,
        history: History,
        clock: Clock,
        entropy: Entropy,
        protocol: int = LEASE_PROTOCOL,
        has_entry_ttl: bool = False,
    ) -> None:
        super().__init__(leases, epochs, clock=clock, entropy=entropy, protocol=protocol, has_entry_ttl=has_entry_ttl)
        self._history = history
        self._own_clock = clock

    async def claim(
        self,
        resource: str,
        owner: str,
        *,
        ttl_s: float | None = None,
        preferred: str | None = None,
        meta: Mapping[str, Any] | None = None,
        gated: bool = False,
    ) -> ClaimResult:
        call = self._asked("claim", resource, owner, None, ttl_s)
        call.answer = await super().claim(resource, owner, ttl_s=ttl_s, preferred=preferred, meta=meta, gated=gated)
        call.answered_at = self._own_clock.elapsed()
        return call.answer

    async def renew(
        self,
        resource: str,
        owner: str,
        epoch: int,
        *,
        ttl_s: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> bool:
        call = self._asked("renew", resource, owner, epoch, ttl_s)
        call.answer = await super().renew(resource, owner, epoch, ttl_s=ttl_s, meta=meta)
        call.answered_at = self._own_clock.elapsed()
        return call.answer

    async def release(self, resource: str, owner: str, epoch: int) -> bool:
        call = self._asked("release", resource, owner, epoch, None)
        call.answer = await super().release(resource, owner, epoch)
        call.answered_at = self._own_clock.elapsed()
        return call.answer

    def _asked(
        self,
        verb: Literal["claim", "renew", "release"],
        resource: str,
        owner: str,
        epoch: int | None,
        ttl_s: float | None,
    ) -> Call:
        call = Call(verb, resource, owner, epoch, ttl_s or self.ttl_s, self._own_clock.elapsed())
        self._history.calls.append(call)
        return call


def _by_resource(things: "Iterable[Any]") -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for thing in things:
        found[thing.resource].append(thing)
    return found
