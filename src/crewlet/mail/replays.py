"""Replaying a dead letter: back into its inbox as new mail, at most once a letter.

A record claims the replay before anything is sent, and says when it is done. Between the two the broker's own dedupe
makes a repeat harmless, whoever repeats it, and nobody sends past that window. A claim that was never confirmed and is
older than that is settled by looking for the mail; where it is not found, only a person may decide to send it again,
since an absence proves nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from crewlet.mail import topics
from crewlet.mail.deadletters import place_of
from crewlet.mail.ledger import Ledger
from crewlet.ports.cells import BucketSpec, Cells, Done, Entry, Refused, Unknown
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeadLetter
from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.ports.mail import Mail, MailRefused

REPLAYS_BUCKET = BucketSpec("crewlet_replays", max_age_s=35 * 24 * 3600.0)
"""Longer than a dead letter lives, so that none can be replayed after its record has gone."""

REPEAT_S = 60.0
"""How long after its claim a replay may be sent: half of the broker's dedupe window, which begins when one lands."""

_ROUNDS = 8

_log = structlog.get_logger()


class ReplayUnsure(CrewletError):
    """An earlier replay of this letter was never confirmed, and its mail is nowhere to be found."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A letter was replayed. `at` is when, by the store's clock; `is_repeat`: by an earlier call."""

    at: datetime
    is_repeat: bool


@dataclass(frozen=True, slots=True)
class ReplayState:
    """What is on record of a letter's replay: begun `at`, and whether it is confirmed."""

    at: datetime
    is_confirmed: bool


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    attempt: int = 1
    by: str = ""
    is_done: bool = False


class Replays:
    """The replays of a company.

    Args:
        open_cells: opens `REPLAYS_BUCKET`; asked at the first use.
        owner: this process incarnation.
    """

    def __init__(
        self, mail: Mail, ledger: Ledger, open_cells: Callable[[], Awaitable[Cells]], owner: str, clock: Clock
    ) -> None:
        self._mail = mail
        self._ledger = ledger
        self._open_cells = open_cells
        self._cells: Cells | None = None
        self._owner = owner
        self._clock = clock

    async def state(self, letter_id: str) -> ReplayState | None:
        """What is on record of a letter, or None when it was never replayed.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await (await self._bucket()).read(letter_id)
        return None if entry is None else ReplayState(entry.written_at, _record(entry).is_done)

    async def replay(self, letter: DeadLetter, *, again: bool = False) -> Replay:
        """Publish the letter's mail to its topic, unless that was done before.

        Args:
            again: send it once more although an unconfirmed earlier replay may have arrived.

        Raises:
            NoMailbox, MessageTooLarge: refused; the letter can still be replayed.
            ReplayUnsure: see there.
            Unavailable: unknown; a repeat is safe.
        """
        cells = await self._bucket()
        for _ in range(_ROUNDS):
            entry = await cells.read(letter.id)
            asked_at = self._clock.elapsed()
            if entry is None:
                record = _Record(by=self._owner)
                result = await cells.create(letter.id, msgspec.json.encode(record))
                until = asked_at + REPEAT_S
            elif (record := _record(entry)).is_done:
                return Replay(entry.written_at, is_repeat=True)
            elif (age_s := await self._age_s(entry)) < REPEAT_S:
                return await self._send(letter, record, None, asked_at + REPEAT_S - age_s)
            elif await self._has_landed(letter):
                return Replay(await self._confirm(letter, record), is_repeat=True)
            elif again:
                record, until = _Record(attempt=record.attempt + 1, by=self._owner), asked_at + REPEAT_S
                result = await cells.replace(letter.id, msgspec.json.encode(record), expect=entry.revision)
            else:
                raise ReplayUnsure(
                    f"a replay of {letter.id} was begun at {entry.written_at.isoformat()} and never confirmed, and its "
                    "mail is neither waiting nor finished"
                )
            match result:
                case Done(revision=revision):
                    return await self._send(letter, record, revision, until)
                case Refused():
                    continue
                case Unknown(reason=reason):
                    raise Unavailable(f"the replay of {letter.id} was not begun: {reason}")
        raise Unavailable(f"the replay of {letter.id} was overtaken each time")

    async def _send(self, letter: DeadLetter, record: _Record, claim: int | None, until: float) -> Replay:
        """Publish under the claim's own id, as long as a repeat is known for one.

        Args:
            claim: the revision of our own claim, or None where another call made it.
        """

        def admit() -> None:
            if self._clock.elapsed() >= until:
                raise Unavailable(f"whether the replay of {letter.id} arrived is not known")

        try:
            published = await self._mail.publish(
                letter.subscription.topic,
                letter.data,
                message_id=letter.message_id,
                headers=letter.headers,
                once=f"replay of {letter.id}, {record.attempt}",
                admit=admit,
            )
        except MailRefused:
            if claim is not None:
                await (await self._bucket()).remove(letter.id, expect=claim)
            raise
        return Replay(await self._confirm(letter, record), is_repeat=published.is_duplicate)

    async def _confirm(self, letter: DeadLetter, record: _Record) -> datetime:
        """Say on record that it is done. Where nobody answers the next call finds the mail, or its duplicate."""
        cells = await self._bucket()
        done = msgspec.json.encode(msgspec.structs.replace(record, is_done=True))
        try:
            for _ in range(_ROUNDS):
                entry = await cells.read(letter.id)
                if entry is not None and _record(entry).is_done:
                    return entry.written_at
                if entry is None:
                    await cells.create(letter.id, done)
                else:
                    await cells.replace(letter.id, done, expect=entry.revision)
        except Unavailable as error:
            _log.warning("dead_letter_replay_unconfirmed", letter=letter.id, error=str(error))
        return self._clock.now()

    async def _has_landed(self, letter: DeadLetter) -> bool:
        """Whether the replayed mail is anywhere: in the order in which mail moves on, so that it cannot slip past."""
        kept = await self._mail.find(letter.subscription, letter.message_id)
        if kept is not None and kept.sequence != letter.sequence:
            return True
        handle = topics.seat_of(letter.subscription)
        if handle is not None and await self._ledger.completion(handle, letter.message_id) is not None:
            return True
        newest = await self._mail.dead_letters.latest(letter.subscription, letter.message_id)
        return newest is not None and place_of(newest.id) > place_of(letter.id)

    async def _age_s(self, entry: Entry) -> float:
        """How old a record is, at least, by the store's clock."""
        mark = await (await self._bucket()).mark()
        return max(0.0, (mark.store_now - entry.written_at).total_seconds())

    async def _bucket(self) -> Cells:
        if self._cells is None:
            self._cells = await self._open_cells()
        return self._cells


def _record(entry: Entry) -> _Record:
    return msgspec.json.decode(entry.value, type=_Record)
