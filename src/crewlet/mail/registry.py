"""Which mailboxes a company has made: one record a seat, kept until the mailbox is retired.

A mailbox is named after its handle, so nothing needs to remember it while the seat is in the company. Once the handle
is gone from the document this registry is what still knows it, and when it was first missed. Every write is a
compare-and-set on the record's version, so that of two that decide at once only one goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.mail import topics
from crewlet.ports.cells import BucketSpec, Cells, Entry, Refused, WriteResult
from crewlet.ports.errors import Unavailable

MAILBOXES_BUCKET = BucketSpec("crewlet_mailboxes")

_log = structlog.get_logger()


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    absent_since: datetime | None = None
    retiring_since: datetime | None = None
    retiring_by: str = ""
    messages: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class MailboxRecord:
    """What is known of one seat's mailbox. Instants are UTC, on the store's clock.

    Attributes:
        handle: the seat.
        version: which write of the record this is; every later write must name it.
        absent_since: when the seat was first missed in the company; None while it is in it.
        retiring_since: when the retirement that is under way was marked; None without one.
        retiring_by: names that retirement.
        messages: how many lay in each part of the mailbox before a retirement began to delete it; it stays when that
            came to nothing, as some parts may be gone.
    """

    handle: str
    version: int
    absent_since: datetime | None = None
    retiring_since: datetime | None = None
    retiring_by: str = ""
    messages: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def is_clean(self) -> bool:
        """The seat is in the company as far as anybody noticed: no retirement can begin before a whole grace."""
        return self.absent_since is None and self.retiring_since is None

    def absent(self, at: datetime) -> "MailboxRecord":
        """The seat was missed."""
        return replace(self, absent_since=at)

    def marked(self, at: datetime, by: str, messages: Mapping[str, int] | None = None) -> "MailboxRecord":
        """A retirement begins, of so many messages."""
        return replace(self, retiring_since=at, retiring_by=by, messages=messages or {})

    def unmarked(self) -> "MailboxRecord":
        """The retirement came to nothing; the absence stays as it was first noticed."""
        return replace(self, retiring_since=None, retiring_by="")

    def returned(self) -> "MailboxRecord":
        """The seat is in the company."""
        return replace(self, absent_since=None, retiring_since=None, retiring_by="", messages={})


@dataclass(frozen=True, slots=True)
class Register:
    """Every record at one moment. Nothing is concluded of the seats whose record could not be read."""

    records: Mapping[str, MailboxRecord]
    unreadable: frozenset[str]


class MailboxRegistry:
    """The records, in the bucket `MAILBOXES_BUCKET`."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def now(self) -> datetime:
        """The store's clock, for stamps and for judging them.

        Raises:
            Unavailable: nobody answered.
        """
        return (await self._cells.mark()).store_now.astimezone(UTC)

    async def get(self, handle: str) -> MailboxRecord | None:
        """One seat's record, or None when there is none.

        Raises:
            Unavailable: nobody answered, or the record cannot be read.
        """
        entry = await self._cells.read(handle)
        return None if entry is None else _record(entry)

    async def list(self) -> Register:
        """Every record.

        Raises:
            Unavailable: nobody answered. Never a part of them.
        """
        records: dict[str, MailboxRecord] = {}
        unreadable: set[str] = set()
        for entry in await self._cells.list():
            try:
                records[entry.key] = _record(entry)
            except Unavailable as error:
                unreadable.add(entry.key)
                _log.error("seat_mailbox_record_unreadable", seat=entry.key, error=str(error))
        return Register(records, frozenset(unreadable))

    async def create(self, handle: str, *, absent_since: datetime | None = None) -> WriteResult:
        """Record a seat that has no record. One that has a record keeps it: Refused."""
        return await self._cells.create(handle, _encoded(MailboxRecord(handle, 0, absent_since)))

    async def update(self, record: MailboxRecord) -> WriteResult:
        """Write a record over exactly the version that it names; over any other, or none: Refused."""
        if record.version < 1:
            return Refused()
        return await self._cells.replace(record.handle, _encoded(record), expect=record.version)

    async def delete(self, record: MailboxRecord) -> WriteResult:
        """Take a record away at exactly the version that it names."""
        if record.version < 1:
            return Refused()
        return await self._cells.remove(record.handle, expect=record.version)


def _encoded(record: MailboxRecord) -> bytes:
    since, retiring = _utc(record.absent_since), _utc(record.retiring_since)
    return msgspec.json.encode(_Stored(since, retiring, record.retiring_by, dict(record.messages)))


def _record(entry: Entry) -> MailboxRecord:
    try:
        stored = decode(entry.value, _Stored)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the mailbox record of {entry.key} cannot be read: {error}") from error
    if not topics.is_handle(entry.key):
        raise Unavailable(f"{entry.key!r} in the mailbox registry is no handle")
    since, retiring = _utc(stored.absent_since), _utc(stored.retiring_since)
    return MailboxRecord(entry.key, entry.revision, since, retiring, stored.retiring_by, stored.messages)


def _utc(at: datetime | None) -> datetime | None:
    """A stamp without a zone is taken as UTC."""
    if at is None:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
