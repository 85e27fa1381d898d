"""Channels: one question of one seat to another, and its one answer.

The question and the answer are mail; the record keeps what mail cannot: that a question has one answer. It is closed by
compare-and-set before the answer leaves, with the answer in it, so that whoever finds it closed and undelivered can
deliver it, under an id that makes a repeat the same mail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec
import structlog

from crewlet.mail.envelope import Envelope
from crewlet.mail.work_key import channel_mail_id
from crewlet.ports.cells import BucketSpec, Cells, Done, Entry, Refused, Unknown, landed
from crewlet.ports.errors import CrewletError, Unavailable

CHANNELS_BUCKET = BucketSpec("crewlet_channels")
"""No age: a question waits for as long as its mail does, and the maintenance duty closes and removes."""

IDLE_S = 3600.0
"""A question that nobody has answered for so long is closed, and its asker told."""
KEPT_S = 7 * 24 * 3600.0
"""How long a closed channel is remembered: as long as the ledger knows its wakes."""
MAX_ANSWER_CHARS = 100_000

_TRIES = 20
_DELIVERED_WITHIN_S = 60.0
UNANSWERED = "Nobody has answered this question within an hour; the channel is closed."

_log = structlog.get_logger()


class ChannelClosed(CrewletError):
    """The question is answered, was given up, or is not this seat's to answer."""


class Channel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One channel.

    Attributes:
        asker, to: who asks whom.
        question: its text.
        depth: how often the work was passed on, the question included.
        trace_id: of the asking turn.
        state: `open`, `answered`, or `idle` where it was closed without an answer.
        answer: its text.
        by_work: the unit of work that answered, which may say so again.
        is_delivered: the mail with the answer is in the asker's inbox.
    """

    asker: str
    to: str
    question: str
    depth: int = 0
    trace_id: str = ""
    state: Literal["open", "answered", "idle"] = "open"
    answer: str = ""
    by_work: str = ""
    is_delivered: bool = False

    def request(self, channel_id: str, timestamp: str, parent_turn_id: str) -> Envelope:
        """The mail with the question."""
        return Envelope(
            id=channel_mail_id(channel_id, "request"),
            type="a2a_request",
            timestamp=timestamp,
            source=f"seat:{self.asker}",
            to=self.to,
            body=self.question,
            payload={"channel": channel_id},
            trace_id=self.trace_id,
            delegation_depth=self.depth,
            parent_turn_id=parent_turn_id,
        )

    def message(self, channel_id: str, timestamp: str, parent_turn_id: str = "") -> Envelope:
        """The mail with the answer. It lies no deeper than its question."""
        payload: dict[str, object] = {"channel": channel_id, "question": self.question[:2_000]}
        if self.state == "idle":
            payload["is_unanswered"] = True
        return Envelope(
            id=channel_mail_id(channel_id, "message"),
            type="a2a_message",
            timestamp=timestamp,
            source=f"seat:{self.to}" if self.state == "answered" else "program",
            to=self.asker,
            body=self.answer if self.state == "answered" else UNANSWERED,
            payload=payload,
            trace_id=self.trace_id,
            delegation_depth=self.depth,
            parent_turn_id=parent_turn_id,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A channel as the store has it."""

    id: str
    channel: Channel
    revision: int
    written_at: datetime


class Channels:
    """The channels of the company."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def open(self, channel_id: str, channel: Channel) -> Channel:
        """Open a channel. A repeat finds it as it is now.

        Raises:
            Unavailable: nobody said whether it is open; a repeat is safe.
        """
        match await self._cells.create(_key(channel_id), msgspec.json.encode(channel)):
            case Done():
                _log.info("channel_opened", channel=channel_id, asker=channel.asker, to=channel.to)
                return channel
            case Refused():
                found = await self.find(channel_id)
                if found is None:
                    raise Unavailable(f"nobody says whether the channel {channel_id} is open")
                return found.channel
            case Unknown(reason):
                raise Unavailable(f"nobody said whether the channel is open: {reason}")

    async def find(self, channel_id: str) -> Found | None:
        """A channel, or None.

        Raises:
            Unavailable: nobody answered.
        """
        try:
            key = _key(channel_id)
        except ValueError:
            return None
        entry = await self._cells.read(key)
        return _found(entry) if entry is not None else None

    async def answer(self, channel_id: str, *, by: str, text: str, work: str) -> Channel:
        """Close a channel with its answer. A repeat by the same unit of work finds the answer that it gave.

        Args:
            by: the seat that answers.
            work: its work key, or its turn id where that is empty.

        Raises:
            ChannelClosed: it has an answer, was given up, or is not this seat's to answer.
            Unavailable: nobody said whether it is closed; a repeat is safe.
        """
        for _ in range(_TRIES):
            found = await self.find(channel_id)
            if found is None or found.channel.to != by:
                raise ChannelClosed(f"no question {channel_id!r} waits for an answer of {by}")
            channel = found.channel
            if channel.state == "answered" and channel.by_work == work:
                return channel
            if channel.state != "open":
                why = "it has its answer" if channel.state == "answered" else "it waited too long, and was given up"
                raise ChannelClosed(f"the question is closed: {why}")
            closed = msgspec.structs.replace(channel, state="answered", answer=text, by_work=work)
            if await self._replace(found, closed):
                _log.info("channel_answered", channel=channel_id, asker=channel.asker, by=by)
                return closed
        raise Unavailable(f"the channel {channel_id} was changed by others again and again")

    async def delivered(self, channel_id: str) -> None:
        """Note that the answer is in the asker's inbox. Without the note it is delivered once more, as the same mail.

        Raises:
            Unavailable: nobody said whether it is noted.
        """
        found = await self.find(channel_id)
        if found is not None and found.channel.state != "open" and not found.channel.is_delivered:
            await self._replace(found, msgspec.structs.replace(found.channel, is_delivered=True))

    async def sweep(self, turned: Callable[[], None]) -> "Swept":
        """Close what was idle for too long, forget what was closed for long enough, and say what is undelivered.

        Raises:
            Unavailable: nobody answered; some may be done.
        """
        now = (await self._cells.mark()).store_now
        removed = 0
        undelivered: list[Found] = []
        for entry in await self._cells.list():
            turned()
            found, age = _found(entry), now - entry.written_at
            channel = found.channel
            if channel.state == "open":
                if age < timedelta(seconds=IDLE_S):
                    continue
                closed = msgspec.structs.replace(channel, state="idle")
                if await self._replace(found, closed):
                    _log.warning("channel_idle_closed", channel=found.id, asker=channel.asker, to=channel.to)
                    undelivered.append(Found(found.id, closed, 0, now))
            elif not channel.is_delivered:
                if age >= timedelta(seconds=_DELIVERED_WITHIN_S):
                    undelivered.append(found)
            elif age >= timedelta(seconds=KEPT_S):
                removed += isinstance(await self._cells.remove(entry.key, expect=entry.revision), Done)
        return Swept(tuple(undelivered), removed)

    async def _replace(self, found: Found, channel: Channel) -> bool:
        """Whether this write won.

        Raises:
            Unavailable: nobody said.
        """
        result = await self._cells.replace(_key(found.id), msgspec.json.encode(channel), expect=found.revision)
        return landed(result, "nobody said whether the channel is changed")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: answers that are in no inbox yet, and how many channels are forgotten."""

    undelivered: tuple[Found, ...]
    removed: int


_CHARS = frozenset("0123456789abcdef-")


def _key(channel_id: str) -> str:
    if not 0 < len(channel_id) <= 64 or not _CHARS.issuperset(channel_id):
        raise ValueError(f"{channel_id!r} is no channel")
    return f"channel.{channel_id}"


def _found(entry: Entry) -> Found:
    try:
        channel = msgspec.json.decode(entry.value, type=Channel)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record {entry.key} cannot be read: {error}") from error
    return Found(entry.key.partition(".")[2], channel, entry.revision, entry.written_at)
