"""Replaying a dead letter: back into its inbox as new mail, at most once a letter.

A record claims the replay before anything is sent, and says when it is done. Between the two the broker's own dedupe
makes a repeat harmless, whoever repeats it, and nobody sends past that window. What became of the mail is told by where
it is found, and it is done only where the ledger says that a turn has ended it; that is then put on the record, which
outlives the ledger's. Where it is found nowhere, as when its mailbox was retired, only a person may decide to send it
again, since an absence proves nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec
import structlog

from crewlet.kit import wording
from crewlet.kit.decoding import Instant, decode
from crewlet.mail import topics
from crewlet.mail.deadletters import place_of
from crewlet.mail.ledger import Ledger
from crewlet.ports.cells import BucketSpec, Cells, Done, Entry, Refused, Unknown
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeadLetter
from crewlet.ports.errors import CrewletError, Unavailable, Unreadable
from crewlet.ports.mail import Mail, MailRefused

REPLAYS_BUCKET = BucketSpec("crewlet_replays", max_age_s=35 * 24 * 3600.0)
"""Longer than a dead letter lives, so that none can be replayed after its record has gone."""

REPEAT_S = 60.0
"""How long after its claim a replay may be sent: half of the broker's dedupe window, which begins when one lands."""

_ROUNDS = 8

_log = structlog.get_logger()


Found = Literal["open", "done", "dead_lettered"]
"""Where replayed mail is: in its inbox or in hand, ended by a turn, or among the dead letters once more."""


class ReplayUnsure(CrewletError):
    """This letter was replayed, or may have been, and its mail is nowhere to be found."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A letter was replayed. `at` is when, by the store's clock; `is_repeat`: by an earlier call.

    Attributes:
        mail: where the mail is; of a repeat, where it was found.
    """

    at: datetime
    is_repeat: bool
    mail: Found = "open"


@dataclass(frozen=True, slots=True)
class ReplayState:
    """What is known of a letter's replay, begun `at`; None where its record cannot be read.

    Attributes:
        mail: where the mail is; `unknown` where it was sent and cannot be found; `unconfirmed` where it cannot be
            found, and nobody said that it was sent.
    """

    at: datetime | None
    mail: Found | Literal["unknown", "unconfirmed"]


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """`is_sent`: the store has confirmed the mail. `is_worked`: a turn has ended it."""

    attempt: int = 1
    by: str = ""
    is_sent: bool = msgspec.field(default=False, name="is_done")
    is_worked: bool = False
    sent_at: Instant | None = None


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

    async def state(self, letter: DeadLetter) -> ReplayState | None:
        """What is known of a letter's replay, or None when it was never replayed.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await (await self._bucket()).read(letter.id)
        if entry is None:
            return None
        record = _record(entry)
        found = await self._found(letter, record)
        return ReplayState(_at(entry), found or ("unknown" if record.is_sent else "unconfirmed"))

    async def replay(self, letter: DeadLetter, *, again: bool = False) -> Replay:
        """Publish the letter's mail to its topic, unless that was done before.

        Args:
            again: send it once more although an earlier replay was, or may have been, sent, and its mail is not found.

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
            elif not (record := _record(entry)).is_sent and (age_s := await self._age_s(entry)) < REPEAT_S:
                return await self._send(letter, record, None, asked_at + REPEAT_S - age_s)
            elif (found := await self._found(letter, record)) is not None:
                at = _at(entry) if record.is_sent else await self._confirm(letter, record)
                return Replay(at, is_repeat=True, mail=found)
            elif again:
                record, until = _Record(attempt=record.attempt + 1, by=self._owner), asked_at + REPEAT_S
                result = await cells.replace(letter.id, msgspec.json.encode(record), expect=entry.revision)
            else:
                raise ReplayUnsure(_nowhere(letter, entry))
            match result:
                case Done(revision=revision):
                    return await self._send(letter, record, _Claim(revision, entry), until)
                case Refused():
                    continue
                case Unknown(reason=reason):
                    raise Unavailable(f"the replay of {letter.id} was not begun: {reason}")
        raise Unavailable(f"the replay of {letter.id} was overtaken each time")

    async def _send(self, letter: DeadLetter, record: _Record, claim: "_Claim | None", until: float) -> Replay:
        """Publish under the claim's own id, as long as a repeat is known for one.

        Args:
            claim: our own claim, or None where another call made it.
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
                await self._take_back(letter, claim)
            raise
        return Replay(await self._confirm(letter, record), is_repeat=published.is_duplicate)

    async def _take_back(self, letter: DeadLetter, claim: "_Claim") -> None:
        """Nothing was sent under this claim: what an earlier one had come to is on record again."""
        cells = await self._bucket()
        if claim.before is None:
            await cells.remove(letter.id, expect=claim.revision)
        else:
            before = msgspec.structs.replace(_record(claim.before), sent_at=_at(claim.before))
            await cells.replace(letter.id, msgspec.json.encode(before), expect=claim.revision)

    async def _confirm(self, letter: DeadLetter, record: _Record) -> datetime:
        """Say on record that it was sent. Where nobody answers the next call finds the mail, or its duplicate."""
        cells = await self._bucket()
        sent = msgspec.json.encode(msgspec.structs.replace(record, is_sent=True))
        try:
            for _ in range(_ROUNDS):
                entry = await cells.read(letter.id)
                if entry is not None and _record(entry).is_sent:
                    return _at(entry)
                if entry is None:
                    await cells.create(letter.id, sent)
                else:
                    await cells.replace(letter.id, sent, expect=entry.revision)
        except Unavailable as error:
            _log.warning("dead_letter_replay_unconfirmed", letter=letter.id, error=str(error))
        return self._clock.now()

    async def _found(self, letter: DeadLetter, record: _Record) -> Found | None:
        """Where the replayed mail is: looked for in the order in which mail moves, so that it cannot slip past."""
        if record.is_worked:
            return "done"
        if await self._is_worked(letter):
            return "done"
        kept = await self._mail.find(letter.subscription, letter.message_id)
        if kept is not None and kept.sequence != letter.sequence:
            return "open"
        newest = await self._mail.dead_letters.latest(letter.subscription, letter.message_id)
        if await self._is_worked(letter):
            return "done"
        return "dead_lettered" if newest is not None and place_of(newest.id) > place_of(letter.id) else None

    async def _is_worked(self, letter: DeadLetter) -> bool:
        """Whether a turn has ended the mail, by the ledger; if so that is noted, as well as the store lets us."""
        handle = topics.seat_of(letter.subscription)
        if handle is None or await self._ledger.completion(handle, letter.message_id) is None:
            return False
        cells = await self._bucket()
        entry = await cells.read(letter.id)
        if entry is not None and not (record := _record(entry)).is_worked:
            noted = msgspec.structs.replace(record, is_sent=True, is_worked=True, sent_at=_at(entry))
            await cells.replace(letter.id, msgspec.json.encode(noted), expect=entry.revision)
        return True

    async def _age_s(self, entry: Entry) -> float:
        """How old a record is, at least, by the store's clock."""
        mark = await (await self._bucket()).mark()
        return max(0.0, (mark.store_now - entry.written_at).total_seconds())

    async def _bucket(self) -> Cells:
        if self._cells is None:
            self._cells = await self._open_cells()
        return self._cells


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim of this call, at a revision, and what was on record before it."""

    revision: int
    before: Entry | None


def _record(entry: Entry) -> _Record:
    try:
        return decode(entry.value, _Record)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the record of the replay of {entry.key} cannot be read: {error}") from error


def _at(entry: Entry) -> datetime:
    """When the replay was claimed or sent: a later note about it does not change that."""
    return _record(entry).sent_at or entry.written_at


def _nowhere(letter: DeadLetter, entry: Entry) -> str:
    done = "was sent" if _record(entry).is_sent else "was begun and never confirmed"
    return (
        f"a replay of {letter.id} {done} at {wording.instant(_at(entry))}, and its mail is neither waiting nor "
        "finished nor dead-lettered again: it may have gone with its mailbox, or have been finished long ago; "
        "--again sends it anew"
    )
