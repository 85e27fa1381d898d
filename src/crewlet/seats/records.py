"""What the lease layer keeps in its buckets, how a resource becomes a key, and how a record is judged.

Records are additive for ever: an unknown field is passed over and a missing one has a meaning. A record is judged on
the store's clock alone.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
import structlog

from crewlet.kit.decoding import Instant, decode
from crewlet.ports.cells import Entry
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.seats.lease import Lease

EMPTY_META = msgspec.Raw(b"{}")
OLDEST_PROTOCOL = 1

_CLASS = re.compile(r"[a-z0-9][a-z0-9_-]*")
_PLAIN_RESOURCE = re.compile(r"([a-z0-9][a-z0-9_-]*):([A-Za-z0-9_-]+)")
_PLAIN_KEY = re.compile(r"([a-z0-9][a-z0-9_-]*)\.([A-Za-z0-9_-]+)")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_MAX_KEY = 1_000
_REMEMBERED = 10_000
_SHORT = 512
_TICK = timedelta(microseconds=1)

_log = structlog.get_logger()


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One lease as it is stored.

    Attributes:
        owner: who claims, holds or last held it.
        epoch: the tenure's fencing token; 0 while the claim has none yet.
        claim: names the call that wrote it in its claiming state; every later write of the tenure keeps it.
        released: the tenure (or the failed claim) is over.
        ttl_s: how long it lives after its last write; 0 is the bucket's age.
        acquired_at: the store's time of the tenure's first write; absent until the first renewal writes it in.
        after: when the tenure before this one was acquired, so that this one's time is later whatever the clocks do.
        preferred: the node that would like it back.
        protocol: what holding it means to the build that wrote it. Silence is the oldest build's.
        meta: facts about the holder, a JSON object.
    """

    owner: str = ""
    epoch: int = 0
    claim: str = ""
    released: bool = False
    ttl_s: float = 0.0
    acquired_at: Instant | None = None
    after: Instant | None = None
    preferred: str | None = None
    protocol: int = OLDEST_PROTOCOL
    meta: msgspec.Raw = EMPTY_META


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives every lease of a resource: its last fencing token and the node that would like it back."""

    epoch: int = 0
    preferred: str | None = None


_encoder = msgspec.json.Encoder()


def encode(record: LeaseRecord | EpochRecord) -> bytes:
    return _encoder.encode(record)


def encode_meta(meta: Mapping[str, Any]) -> msgspec.Raw:
    """Facts as stored.

    Raises:
        Misuse: they are no JSON object.
    """
    try:
        raw = _encoder.encode(dict(meta))
        decode(raw, dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Misuse(f"the meta of a lease is a JSON object: {error}") from error
    return msgspec.Raw(raw)


def decode_meta(raw: msgspec.Raw) -> dict[str, Any]:
    """A new copy of the facts; empty when they are not an object."""
    if raw == EMPTY_META:
        return {}
    try:
        return decode(raw, dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def decode_epoch(entry: Entry | None) -> EpochRecord:
    """The counter of a resource; epoch 0 where it was never claimed.

    Raises:
        Unavailable: it cannot be read. A token is never guessed.
    """
    if entry is None:
        return EpochRecord()
    try:
        return decode(entry.value, EpochRecord)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the counter of {entry.key} cannot be read: {error}") from error


def decode_lease(value: bytes) -> LeaseRecord:
    """A lease as stored.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return _decode_short(value) if len(value) <= _SHORT else decode(value, LeaseRecord)


@lru_cache(_REMEMBERED)
def _decode_short(value: bytes) -> LeaseRecord:
    # A seat's renewal writes the same bytes again, and every list reads them.
    return decode(value, LeaseRecord)


def is_claiming_record_of(entry: Entry, claim: str) -> bool:
    """Whether a cell holds the claiming record of exactly this call."""
    try:
        record = decode_lease(entry.value)
    except msgspec.MsgspecError:
        return False
    return record.claim == claim and record.epoch <= 0 and not record.released


class Found(msgspec.Struct, frozen=True):
    """A lease record beside the store's clock.

    Attributes:
        entry: the cell.
        record: its content. One that cannot be read counts as a claim of somebody unknown, until it ages out.
        expires_at: the store's time at which it lapses.
        is_live: it is neither lapsed nor released.
    """

    entry: Entry
    record: LeaseRecord
    expires_at: datetime
    is_live: bool

    @property
    def is_held(self) -> bool:
        """A tenure is running."""
        return self.is_live and self.record.epoch > 0

    @property
    def ended_at(self) -> datetime | None:
        """When its tenure ended, given back or lapsed; None where one runs, or the record is of a claim that failed."""
        if self.is_live or self.record.epoch <= 0:
            return None
        if not self.record.released:
            return self.expires_at
        # What a failed claim leaves has the epoch of the tenure before, and no time of its own.
        return self.entry.written_at if self.record.acquired_at is not None else None

    @property
    def is_claiming(self) -> bool:
        """A claim is about to become a tenure, or to be given back."""
        return self.is_live and self.record.epoch <= 0

    @property
    def acquired_at(self) -> datetime:
        return acquired_at(self.entry, self.record)

    def is_tenure_of(self, owner: str, epoch: int) -> bool:
        """Whether it is that tenure's record, live or not."""
        record = self.record
        return not record.released and record.epoch == epoch and record.owner == owner

    def lease(self, resource: str) -> Lease:
        return Lease(
            resource=resource,
            owner=self.record.owner,
            epoch=self.record.epoch,
            acquired_at=self.acquired_at,
            expires_at=self.expires_at,
            preferred=self.record.preferred,
            meta=decode_meta(self.record.meta),
            protocol=self.record.protocol,
        )


def acquired_at(entry: Entry, record: LeaseRecord) -> datetime:
    """When the tenure began: as recorded, or, before its first renewal, the time of its own write."""
    if record.acquired_at is not None:
        return record.acquired_at
    if record.after is not None:
        return max(entry.written_at, record.after + _TICK)
    return entry.written_at


def succeeding(found: Found | None) -> datetime | None:
    """What the next tenure's record says in `after`: the newest acquisition that this record knows of."""
    if found is None:
        return None
    had_tenure = found.record.epoch > 0 or found.record.acquired_at is not None
    return found.acquired_at if had_tenure else found.record.after


def judge(entry: Entry, store_now: datetime, age_s: float) -> Found:
    """Read a cell at an instant of the store's clock.

    Args:
        age_s: the age of the bucket.
    """
    try:
        record = decode_lease(entry.value)
    except msgspec.MsgspecError as error:
        _log.error("lease_record_unreadable", key=entry.key, revision=entry.revision, error=str(error))
        record = LeaseRecord()
    expires_at = entry.written_at + timedelta(seconds=lifetime_s(record.ttl_s, age_s))
    return Found(entry, record, expires_at, is_live=not record.released and expires_at > store_now)


def lifetime_s(ttl_s: float, age_s: float) -> float:
    """How long a record lives after a write; its bucket does not keep it longer than its age."""
    return min(ttl_s, age_s) if ttl_s > 0 else age_s


@lru_cache(_REMEMBERED)
def key_of(resource: str) -> str:
    """The cell of a resource. Different resources have different cells.

    Letters, digits, `-` and `_` of the name stand for themselves; every other byte of its UTF-8 becomes `=XX`.

    Raises:
        Misuse: not `class:name`, with a class that `prefix_of` takes and a name that is not blank and has no colon.
    """
    if len(resource) <= _MAX_KEY and _PLAIN_RESOURCE.fullmatch(resource):
        return resource.replace(":", ".")
    cls, _, name = resource.partition(":")
    prefix = prefix_of(cls)
    if not name.strip() or ":" in name:
        raise Misuse(f"a resource is class:name, with a name that has no colon; not {resource!r}")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise Misuse(f"the name of a resource must be text: {resource!r}") from error
    key = prefix + "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in raw)
    if len(key) > _MAX_KEY:
        raise Misuse(f"the name of a resource is too long: {name[:40]!r} and more")
    return key


@lru_cache(_REMEMBERED)
def resource_of(key: str) -> str | None:
    """The resource of a cell; None for a cell that `key_of` never names."""
    if len(key) <= _MAX_KEY and _PLAIN_KEY.fullmatch(key):
        return key.replace(".", ":")
    cls, _, encoded = key.partition(".")
    try:
        name = re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), encoded.encode()).decode()
        resource = f"{cls}:{name}"
        return resource if key_of(resource) == key else None
    except (UnicodeDecodeError, Misuse):
        return None


def prefix_of(cls: str) -> str:
    """Where the cells of a class of resources begin.

    Raises:
        Misuse: a class is lower-case letters, digits, `-` and `_`, and not blank.
    """
    if not _CLASS.fullmatch(cls):
        raise Misuse(f"a class of resources is lower-case letters, digits, - and _; not {cls!r}")
    return f"{cls}."
