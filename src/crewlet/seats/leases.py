"""Leases: who holds a resource, provably, until when, and with which fencing token.

Three answers everywhere: yes, no, and `Unavailable` for what nobody knows. A write whose answer was lost is judged
again at the next call, from the record. Liveness is judged on the store's clock. How long a holder may act is the
holder's own to count, from before it asked and on its own clock; an answer that comes after that is none.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import BucketSpec, Cells, Done, Refused, Unknown
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.seats.claim import ClaimRequest, Claims, Won
from crewlet.seats.gate import ProtocolGate
from crewlet.seats.hints import Hints
from crewlet.seats.holds import ClaimTurns, Hold
from crewlet.seats.lease import LEASE_PROTOCOL, ClaimRefused, ClaimResult, Granted, Lease
from crewlet.seats.records import (
    LeaseRecord,
    decode_meta,
    encode_meta,
    key_of,
    prefix_of,
    resource_of,
)
from crewlet.seats.table import LeaseTable, Look

EPOCHS_BUCKET = BucketSpec("crewlet_epochs")
"""Counters and hints, of leases and duties alike. No age: a token that began again would not fence."""

_ROUNDS = 64


def leases_bucket(ttl_s: float) -> BucketSpec:
    """The bucket of seat and presence leases. Its age is the TTL; the first node that makes it decides."""
    return BucketSpec("crewlet_leases", max_age_s=ttl_s)


class LeaseStore:
    """The leases of one bucket, and their epochs.

    Args:
        leases: the bucket of the records. Its age is the longest TTL there is.
        epochs: the bucket of counters and hints, without an age.
        clock: this machine's; only differences of `elapsed` are used.
        entropy: names each claim.
        protocol: what holding a lease means to this build.
        has_entry_ttl: every record brings its own age (the bucket must allow it).

    Fencing: a claim or renewal says nothing about the moment of its answer; the caller counts its TTL from before the
        call, and does not count an answer that came after its own deadline.

    Raises:
        ConfigRefused: the bucket of the leases has no age, or that of the epochs has one.
    """

    def __init__(
        self,
        leases: Cells,
        epochs: Cells,
        *,
        clock: Clock,
        entropy: Entropy,
        protocol: int = LEASE_PROTOCOL,
        has_entry_ttl: bool = False,
    ) -> None:
        if epochs.max_age_s is not None:
            raise ConfigRefused(
                f"this bucket exists and forgets its records after {epochs.max_age_s:g} s, and an epoch that is "
                "forgotten would be given out again",
                where=f"bucket {epochs.name}",
                remedy="take its age away; to delete it is as bad, unless no seat of the company runs anywhere",
            )
        self._table = LeaseTable(leases, clock, has_entry_ttl=has_entry_ttl)
        self._hints = Hints(epochs, clock)
        self._clock = clock
        self._gate = ProtocolGate(leases, self._table.age_s, clock)
        self._claims = Claims(self._table, epochs, self._gate, clock=clock, entropy=entropy, protocol=protocol)
        self._holds: dict[str, Hold] = {}
        self._turns = ClaimTurns()

    @property
    def ttl_s(self) -> float:
        """The age of the bucket: the TTL of a lease that asks for none, and the longest there is."""
        return self._table.age_s

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
        """Take a lease, or take up again the one that this owner already holds (at the same epoch).

        Args:
            resource: `class:name`; the class lower-case, the name any text without a colon.
            owner: one process incarnation.
            ttl_s: more than 0 and at most `ttl_s` of the store; None is the store's.
            preferred: the node that should get it back; None leaves the hint as it is.
            meta: a JSON object; None leaves the holder's own as it is, and is empty on a new tenure.
            gated: refuse while a seat or presence lease of a lower protocol lives.

        Returns:
            `Granted`, at a new epoch or at that of the owner's running tenure; or `ClaimRefused`, and nothing changed.

        Raises:
            Misuse: an argument is outside its range.
            Unavailable: it is not known to be granted. Claim again to find out.

        Cancellation: what was written is given back first, which takes at most a third of the bucket's age, and 15 s.
            A claim that was granted in the same moment stays, for the owner to claim again or to lapse.
        """
        key = key_of(resource)
        _check_owner(owner)
        request = ClaimRequest(
            key=key,
            owner=owner,
            ttl_s=self._checked_ttl(ttl_s),
            preferred=_checked_node(preferred) if preferred is not None else None,
            meta=encode_meta(meta) if meta is not None else None,
            is_gated=gated,
            is_over=lambda epoch: self._is_over(key, owner, epoch),
        )
        async with self._turns.of(key):
            won = await self._claims.run(request)
            if isinstance(won, ClaimRefused):
                return won
            hold = Hold(key, won.record, won.revision, won.revision, won.lapses_at)
            self._holds[key] = hold
            return Granted(await self._granted(resource, hold, won))

    async def renew(
        self,
        resource: str,
        owner: str,
        epoch: int,
        *,
        ttl_s: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> bool:
        """Prolong a tenure. One write where the last one's revision is known, and never gated.

        Args:
            ttl_s: None keeps the lease's own.
            meta: None keeps what it says.

        Returns:
            True: the tenure had not lapsed when the write reached the store. The caller still counts from before it
            asked, and not at all if its own deadline passed meanwhile. False: this is not, or no longer, the running
            tenure. One that landed too late keeps others out until `release`, as its holder may still be stopping.

        Raises:
            Misuse: an argument is outside its range.
            Unavailable: nobody knows. The tenure is kept until the caller's deadline; the next call asks first. A
                caller that drops the lease before it knows calls `release`, so that a late renewal is refused.
        """
        key = key_of(resource)
        _check_tenure(owner, epoch)
        ttl = self._checked_ttl(ttl_s) if ttl_s is not None else None
        raw = encode_meta(meta) if meta is not None else None
        hold = self._holds.get(key)
        if hold is not None and hold.is_tenure_of(owner, epoch):
            if hold.is_over:
                return False
            if hold.revision is not None and self._clock.elapsed() < hold.lapses_at:
                answer = await self._renew_known(hold, hold.revision, ttl, raw)
                if answer is not None:
                    return answer
        return await self._renew_found(key, owner, epoch, ttl, raw)

    async def release(self, resource: str, owner: str, epoch: int) -> bool:
        """End a tenure at once. A renewal of it that is still on its way can then no longer land.

        Returns:
            True: it was running. False: it was not (lapsed, released, or another's), and nothing else changed.

        Raises:
            Misuse: an argument is outside its range.
            Unavailable: nobody knows. Calling again settles it; otherwise it lapses. This process does not take the
                tenure up again either way.
        """
        key = key_of(resource)
        _check_tenure(owner, epoch)
        hold = self._holds.get(key)
        if hold is not None and hold.is_tenure_of(owner, epoch):
            hold.is_over = True
        for _ in range(_ROUNDS):
            look = await self._look_at(key, owner, epoch)
            found = look.found
            if found is None or not found.is_tenure_of(owner, epoch):
                self._end(key, owner, epoch)
                return False
            released = msgspec.structs.replace(found.record, released=True, acquired_at=found.acquired_at)
            result = await self._table.replace(key, released, expect=found.entry.revision)
            match result:
                case Done():
                    self._forget(key, owner, epoch)
                    return found.is_live
                case Refused():
                    continue
                case Unknown(reason):
                    raise Unavailable(f"{resource}: the release is undecided: {reason}")
                case _:
                    assert_never(result)
        raise Unavailable(f"{resource}: the release was overtaken {_ROUNDS} times")

    async def get(self, resource: str) -> Lease | None:
        """The running tenure, or None.

        Raises:
            Misuse, Unavailable.
        """
        look = await self._table.look(key_of(resource))
        return look.found.lease(resource) if look.found is not None and look.found.is_held else None

    async def list_live(self, cls: str) -> list[Lease]:
        """Every running tenure of a class, by key.

        Raises:
            Misuse, Unavailable.
        """
        held = await self._table.list_held(prefix_of(cls))
        pairs = ((resource_of(found.entry.key), found) for found in held)
        return [found.lease(resource) for resource, found in pairs if resource is not None]

    async def survey(self, cls: str) -> tuple[list[Lease], dict[str, datetime]]:
        """Every running tenure of a class, by key, and when those ended that ended within a TTL, by name.

        Raises:
            Misuse, Unavailable.
        """
        live: list[Lease] = []
        ended: dict[str, datetime] = {}
        for found in await self._table.list_all(prefix_of(cls)):
            resource = resource_of(found.entry.key)
            if resource is not None and found.is_held:
                live.append(found.lease(resource))
            elif resource is not None and found.ended_at is not None:
                ended[resource.partition(":")[2]] = found.ended_at
        return live, ended

    async def list_owned(self, owner: str, cls: str) -> list[Lease]:
        """The running tenures of one owner in a class.

        Raises:
            Misuse, Unavailable.
        """
        _check_owner(owner)
        return [lease for lease in await self.list_live(cls) if lease.owner == owner]

    async def hints(self, node_id: str, cls: str) -> set[str]:
        """The resources of a class that prefer a node, held or not; from a view that stops when nobody asks.

        Raises:
            Misuse, Unavailable.
        """
        prefix = prefix_of(cls)
        node_id = _checked_node(node_id)
        preferring = map(resource_of, await self._hints.of(node_id, prefix))
        return {resource for resource in preferring if resource is not None}

    async def protocol_floor(self) -> int | None:
        """The lowest protocol of the live seat and presence leases; None when there is none.

        Raises:
            Unavailable: nobody answered.
        """
        return await self._gate.floor(await self._table.cells.mark())

    async def stop(self) -> None:
        """End the views and whatever is still being given back. Leases stay as they are."""
        await self._gate.stop()
        await self._hints.stop()
        await self._claims.stop()

    async def _granted(self, resource: str, hold: Hold, won: Won) -> Lease:
        """The lease as its record has it. If that cannot be read, the times are told as well as they are known."""
        try:
            found = await self._table.written(hold.key)
        except Unavailable:
            found = None
        if found is not None and found.entry.revision == won.revision:
            lease = found.lease(resource)
            hold.record = msgspec.structs.replace(won.record, acquired_at=lease.acquired_at)
            return lease
        # Without the time of its commit the first renewal has to read before it writes.
        hold.revision = hold.revision if won.record.acquired_at is not None else None
        return Lease(
            resource=resource,
            owner=won.record.owner,
            epoch=won.record.epoch,
            acquired_at=won.record.acquired_at or won.store_now,
            expires_at=won.store_now + timedelta(seconds=self._table.lifetime_s(won.record)),
            preferred=won.record.preferred,
            meta=decode_meta(won.record.meta),
            protocol=won.record.protocol,
        )

    async def _renew_known(
        self, hold: Hold, revision: int, ttl_s: float | None, meta: msgspec.Raw | None
    ) -> bool | None:
        """Renew upon the revision of the last write. None: it is not the record's any more; ask."""
        record = _renewed(hold.record, ttl_s, meta)
        # Whatever cuts this short leaves the write undecided.
        hold.revision = None
        sent_at = self._clock.elapsed()
        result = await self._table.replace(hold.key, record, expect=revision)
        match result:
            case Done(written):
                return await self._landed(hold, record, written, sent_at, hold.lapses_at)
            case Refused():
                return None
            case Unknown(reason):
                raise Unavailable(f"{hold.key}: the renewal is undecided: {reason}")
            case _:
                assert_never(result)

    async def _renew_found(
        self, key: str, owner: str, epoch: int, ttl_s: float | None, meta: msgspec.Raw | None
    ) -> bool:
        """Renew the record as the store has it."""
        for _ in range(_ROUNDS):
            look = await self._look_at(key, owner, epoch)
            found = look.live
            if found is None or not found.is_tenure_of(owner, epoch):
                self._end(key, owner, epoch)
                return False
            hold = self._holds.get(key)
            if hold is None or not hold.is_tenure_of(owner, epoch):
                hold = self._holds[key] = Hold(key, found.record, found.entry.revision, None, look.lapses_at(found))
            elif hold.ended_before(look, found):
                hold.is_over = True
                return False
            record = _renewed(msgspec.structs.replace(found.record, acquired_at=found.acquired_at), ttl_s, meta)
            hold.revision = None
            sent_at = self._clock.elapsed()
            result = await self._table.replace(key, record, expect=found.entry.revision)
            match result:
                case Done(written):
                    return await self._landed(hold, record, written, sent_at, look.lapses_at(found))
                case Refused():
                    continue
                case Unknown(reason):
                    raise Unavailable(f"{key}: the renewal is undecided: {reason}")
                case _:
                    assert_never(result)
        raise Unavailable(f"{key}: the renewal was overtaken {_ROUNDS} times")

    async def _look_at(self, key: str, owner: str, epoch: int) -> Look:
        """The record of a tenure, from a store that knows at least what this process was told of it.

        Raises:
            Unavailable: nobody answered, or one who is behind.
        """
        look = await self._table.look(key)
        hold = self._holds.get(key)
        if hold is not None and hold.is_tenure_of(owner, epoch) and hold.is_news_to(look):
            raise Unavailable(f"{key}: the member that answered is behind")
        return look

    async def _landed(self, hold: Hold, record: LeaseRecord, revision: int, sent_at: float, lapses_at: float) -> bool:
        """Count a renewal that is in the store, unless it may have come after the lapse of what it renewed."""
        if self._clock.elapsed() >= lapses_at:
            hold.is_over = True
            if not await self._table.landed_before(hold.key, revision, lapses_at):
                return False
            hold.is_over = False
        hold.record, hold.revision, hold.newest = record, revision, revision
        hold.lapses_at = sent_at + self._table.lifetime_s(record)
        return True

    def _end(self, key: str, owner: str, epoch: int) -> None:
        """The tenure is over. While a write of it may still land it is remembered, so that none brings it back."""
        hold = self._holds.get(key)
        if hold is not None and hold.is_tenure_of(owner, epoch) and hold.revision is None:
            hold.is_over = True
        else:
            self._forget(key, owner, epoch)

    def _is_over(self, key: str, owner: str, epoch: int) -> bool:
        """Whether a tenure has ended here, or run out by this process's count, whatever the store still shows."""
        hold = self._holds.get(key)
        if hold is None or not hold.is_tenure_of(owner, epoch):
            return False
        return hold.is_over or self._clock.elapsed() >= hold.lapses_at

    def _forget(self, key: str, owner: str, epoch: int) -> None:
        hold = self._holds.get(key)
        if hold is not None and hold.is_tenure_of(owner, epoch):
            del self._holds[key]

    def _checked_ttl(self, ttl_s: float | None) -> float:
        """The TTL for the record; 0 stands for the bucket's age."""
        if ttl_s is None:
            return 0.0
        if not 0 < ttl_s <= self.ttl_s:
            raise Misuse(f"a lease here lives more than 0 and at most {self.ttl_s:g} s, not {ttl_s!r}")
        return float(ttl_s)


def _renewed(record: LeaseRecord, ttl_s: float | None, meta: msgspec.Raw | None) -> LeaseRecord:
    if ttl_s is None and meta is None:
        return record
    return msgspec.structs.replace(
        record,
        ttl_s=record.ttl_s if ttl_s is None else ttl_s,
        meta=record.meta if meta is None else meta,
    )


def _check_owner(owner: str) -> None:
    if not owner.strip():
        raise Misuse("an owner is not blank")


def _check_tenure(owner: str, epoch: int) -> None:
    _check_owner(owner)
    if epoch < 1:
        raise Misuse(f"an epoch is 1 or more, not {epoch!r}")


def _checked_node(node_id: str) -> str:
    if not node_id.strip():
        raise Misuse("the id of a node is not blank")
    return node_id
