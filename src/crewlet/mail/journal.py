"""Who had a message, and why it came back: what its dead letter will tell, and its sender may ask before that.

Most mail is worked at its first delivery and never noted. A delivery is noted when it comes back with a reason, and,
from the second on, before it is worked, so that one whose node died has left its name. Everything here fails open: a
note that cannot be written or read costs a line of history, never a delivery. Notes name the delivery that they are
of, so one that lands late harms nothing.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import msgspec
import structlog

from crewlet.kit.decoding import Instant, decode
from crewlet.mail.patterns import digest
from crewlet.ports.cells import BucketSpec, Cells, Done, Entry, Refused, Unknown, WriteResult
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import Handling
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Delivery, Subscription

DELIVERIES_BUCKET = BucketSpec("crewlet_deliveries", max_age_s=7 * 24 * 3600.0)
"""Seven days since the last note: as long as the ledger, and longer than 25 deliveries with their back-off."""

NOTE_BUDGET_S = 1.0
_ROUNDS = 8
_NOTES_KEPT = 40
_REASON_CHARS = 500

_log = structlog.get_logger()


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    n: int
    owner: str
    at: Instant
    reason: str = ""


class Journal:
    """The deliveries of messages that were handed over more than once.

    Args:
        owner: this process incarnation.
    """

    def __init__(self, cells: Cells, owner: str, clock: Clock) -> None:
        self._cells = cells
        self._owner = owner
        self._clock = clock

    async def taken(self, subscription: Subscription, delivery: Delivery) -> None:
        """This process is about to work a delivery. Returns within a second, noted or not."""
        await self._note(subscription, delivery, "")

    async def returned(self, subscription: Subscription, delivery: Delivery, reason: str) -> None:
        """This process hands a delivery back for a reason. Returns within a second, noted or not."""
        await self._note(subscription, delivery, reason)

    async def history(self, subscription: Subscription, sequence: int, published_at: datetime) -> tuple[Handling, ...]:
        """What is noted of a message, oldest first; nothing where the notes cannot be read in a second."""
        try:
            async with asyncio.timeout(NOTE_BUDGET_S):
                entry = await self._cells.read(_key(subscription, sequence, published_at))
            notes = _notes(entry)
        except (Unavailable, TimeoutError, msgspec.MsgspecError) as error:
            _log.warning("delivery_history_unread", topic=subscription.topic, sequence=sequence, error=repr(error))
            return ()
        return tuple(Handling(note.n, note.owner, note.at, note.reason) for note in notes)

    async def _note(self, subscription: Subscription, delivery: Delivery, reason: str) -> None:
        note = _Note(delivery.deliveries, self._owner, self._clock.now(), reason[:_REASON_CHARS])
        problem = "it was overtaken each time"
        try:
            async with asyncio.timeout(NOTE_BUDGET_S):
                key = _key(subscription, delivery.sequence, delivery.published_at)
                for _ in range(_ROUNDS):
                    match await self._write(key, note):
                        case Done():
                            return
                        case Refused():
                            continue
                        case Unknown(reason=problem):
                            break
        except (Unavailable, TimeoutError, msgspec.MsgspecError) as error:
            problem = str(error) or type(error).__name__
        _log.warning("delivery_not_noted", topic=subscription.topic, id=delivery.id, error=problem)

    async def _write(self, key: str, note: _Note) -> WriteResult:
        if note.n == 1:
            # The first note of nearly every message that has one: it need not be looked for.
            made = await self._cells.create(key, msgspec.json.encode([note]))
            if not isinstance(made, Refused):
                return made
        entry = await self._cells.read(key)
        if entry is None:
            return await self._cells.create(key, msgspec.json.encode([note]))
        return await self._cells.replace(key, msgspec.json.encode(_joined(_notes(entry), note)), expect=entry.revision)


def _joined(notes: Sequence[_Note], note: _Note) -> list[_Note]:
    """A delivery has one note: why it came back, as first said, replaces that it was taken, and keeps when that was."""
    before = next((each for each in notes if each.n == note.n), None)
    if before is not None:
        note = msgspec.structs.replace(note, at=before.at, reason=before.reason or note.reason)
    others = [each for each in notes if each.n != note.n]
    return sorted([*others, note], key=lambda each: each.n)[-_NOTES_KEPT:]


def _notes(entry: Entry | None) -> list[_Note]:
    return decode(entry.value, list[_Note]) if entry is not None else []


def _key(subscription: Subscription, sequence: int, published_at: datetime) -> str:
    """A message is named by its place and instant: a store that lost its newest gives a place out again."""
    return f"{digest(subscription)}.{sequence}-{round(published_at.timestamp() * 1_000_000)}"
