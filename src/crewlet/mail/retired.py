"""What became of the mail of seats that left the company: how many messages were deleted, kept for longer than dead
letters are, so that nothing goes without a trace. One record a handle: of its newest retirement."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from crewlet.kit.decoding import Instant, decode
from crewlet.ports.cells import BucketSpec, Cells, Done, Refused, Unknown
from crewlet.ports.errors import Unavailable

RETIREMENTS_BUCKET = BucketSpec("crewlet_retirements", max_age_s=35 * 24 * 3600.0)

_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Retired:
    """A mailbox was deleted. `messages` by the part of the mailbox; `at` is the store's clock."""

    at: datetime
    by: str
    absent_since: datetime | None
    messages: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def total(self) -> int:
        return sum(self.messages.values())


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    by: str
    absent_since: Instant | None = None
    messages: dict[str, int] = {}


class Retirements:
    """The records. `open_cells` opens `RETIREMENTS_BUCKET`, and is asked at the first use."""

    def __init__(self, open_cells: Callable[[], Awaitable[Cells]]) -> None:
        self._open_cells = open_cells
        self._cells: Cells | None = None

    async def note(self, handle: str, by: str, absent_since: datetime | None, messages: Mapping[str, int]) -> None:
        """Put a retirement on record. Noted again under the same name, nothing happens.

        Raises:
            Unavailable: it may not be on record; a repeat is safe.
        """
        cells, stored = await self._bucket(), _Stored(by, absent_since, dict(messages))
        for _ in range(_ROUNDS):
            entry = await cells.read(handle)
            if entry is not None and _stored(handle, entry.value).by == by:
                return
            value = msgspec.json.encode(stored)
            if entry is None:
                result = await cells.create(handle, value)
            else:
                result = await cells.replace(handle, value, expect=entry.revision)
            match result:
                case Done():
                    return
                case Refused():
                    continue
                case Unknown(reason):
                    raise Unavailable(f"the retirement of {handle} may not be on record: {reason}")
        raise Unavailable(f"the record of the retirement of {handle} was overtaken each time")

    async def last(self, handle: str) -> Retired | None:
        """The newest retirement of a handle that is still remembered.

        Raises:
            Unavailable: nobody answered, or the record cannot be read.
        """
        entry = await (await self._bucket()).read(handle)
        if entry is None:
            return None
        stored = _stored(handle, entry.value)
        return Retired(entry.written_at, stored.by, stored.absent_since, stored.messages)

    async def _bucket(self) -> Cells:
        if self._cells is None:
            self._cells = await self._open_cells()
        return self._cells


def _stored(handle: str, value: bytes) -> _Stored:
    try:
        return decode(value, _Stored)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record of the retirement of {handle} cannot be read: {error}") from error
