"""Channels: one question of one seat to another, and its one answer.

The question and the answer are mail; the record keeps what mail cannot: that a question has one answer. It is closed by
compare-and-set before the answer leaves, with the answer in it, so that whoever finds it closed and undelivered can
deliver it, under an id that makes a repeat the same mail. What is delivered is remembered without its texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from crewlet.mail.channel import Channel, ChannelClosed, Found, digest_of, is_id, key_of, read, read_all
from crewlet.ports.cells import Admit, BucketSpec, Cells, Done, Refused, Unknown, landed
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import MessageTooLarge

CHANNELS_BUCKET = BucketSpec("crewlet_channels")
"""No age: a question waits for as long as its mail does, and the maintenance duty closes and removes."""

IDLE_S = 3600.0
"""A question that nobody has answered for so long is closed, and its asker told."""
KEPT_S = 7 * 24 * 3600.0
"""How long a closed channel is remembered: as long as the ledger knows its wakes."""
_QUOTED_CHARS = 2_000
_TRIES = 20
_DELIVERED_WITHIN_S = 60.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Opened:
    """A channel that is there. `revision`: of the record, where this call made it; 0 where an earlier one did."""

    channel: Channel
    revision: int = 0


class Channels:
    """The channels of the company.

    Fencing: whoever writes for a seat gives the check of its tenure as `admit`. It is made in the step of each try.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def open(self, channel_id: str, channel: Channel, *, admit: Admit | None = None) -> Opened:
        """Open a channel. A repeat finds it as it is now.

        Raises:
            Unavailable: nobody said whether it is open; a repeat is safe.
            ChannelClosed: its record cannot be read here.
        """
        kept = msgspec.structs.replace(channel, question=channel.question[:_QUOTED_CHARS])
        match await self._cells.create(key_of(channel_id), msgspec.json.encode(kept), admit=admit):
            case Done(revision):
                _log.info("channel_opened", channel=channel_id, asker=channel.asker, to=channel.to)
                return Opened(kept, revision)
            case Refused():
                found = await self.find(channel_id)
                if found is None:
                    raise Unavailable(f"nobody says whether the channel {channel_id} is open")
                return Opened(found.channel)
            case Unknown(reason):
                raise Unavailable(f"nobody said whether the channel is open: {reason}")

    async def withdraw(self, channel_id: str, opened: Opened, *, admit: Admit | None = None) -> None:
        """Take a channel back whose question was refused. One that an earlier run opened may be asked in: it stays.

        What cannot be taken back is given up later, and its asker told.
        """
        if opened.revision:
            await self._cells.remove(key_of(channel_id), expect=opened.revision, admit=admit)

    async def find(self, channel_id: str) -> Found | None:
        """A channel, or None.

        Raises:
            Unavailable: nobody answered.
            ChannelClosed: its record cannot be read here.
        """
        try:
            key = key_of(channel_id)
        except ValueError:
            return None
        entry = await self._cells.read(key)
        return read(entry) if entry is not None else None

    async def answer(self, channel_id: str, *, by: str, text: str, work: str, admit: Admit | None = None) -> Channel:
        """Close a channel with its answer. A repeat by the same unit of work finds the answer that it gave.

        Args:
            by: the seat that answers.
            work: the work key of the mail by which it may: of that alone, whatever is worked with it.

        Raises:
            ChannelClosed: it has an answer, was given up, or is not this seat's to answer.
            MessageTooLarge: the store takes no such answer.
            Unavailable: nobody said whether it is closed; a repeat is safe.
        """
        for _ in range(_TRIES):
            found = await self.find(channel_id)
            if found is None and is_id(channel_id):
                await self._bar(channel_id, by, admit)
            if found is None or found.channel.to != by:
                raise ChannelClosed(f"no question {channel_id!r} waits for an answer of {by}")
            channel = found.channel
            if channel.state == "answered" and channel.by_work == work:
                return channel
            if channel.state != "open":
                why = "it has its answer" if channel.state == "answered" else "it waited too long, and was given up"
                raise ChannelClosed(f"the question is closed: {why}")
            closed = msgspec.structs.replace(
                channel, state="answered", answer=text, digest=digest_of(text), by_work=work
            )
            if await self._replace(found, closed, admit):
                _log.info("channel_answered", channel=channel_id, asker=channel.asker, by=by)
                return closed
        raise Unavailable(f"the channel {channel_id} was changed by others again and again")

    async def delivered(self, channel_id: str, *, admit: Admit | None = None) -> None:
        """Note that the answer is in the asker's inbox. Without the note it is delivered once more, as the same mail.

        Raises:
            Unavailable: nobody said whether it is noted.
        """
        try:
            found = await self.find(channel_id)
        except ChannelClosed:
            return
        if found is not None and found.channel.state != "open" and not found.channel.is_delivered:
            noted = msgspec.structs.replace(found.channel, question="", answer="", is_delivered=True)
            await self._replace(found, noted, admit)

    async def sweep(self, turned: Callable[[], None]) -> "Swept":
        """Close what was idle for too long, forget what was closed for long enough, and say what is undelivered.

        A question is not idle while whoever is to answer waits for another one, nor for as long after.

        Raises:
            Unavailable: nobody answered; some may be done.
        """
        entries, mark = await self._cells.look_over()
        now, removed = mark.store_now, 0
        undelivered: list[Found] = []
        channels, unreadable = read_all(entries)
        busy = {
            upon
            for found in channels
            if found.channel.state == "open" or now - found.written_at < timedelta(seconds=IDLE_S)
            for upon in found.channel.upon
        }
        for found in channels:
            turned()
            channel, age = found.channel, now - found.written_at
            if channel.state == "open":
                if age < timedelta(seconds=IDLE_S) or found.id in busy:
                    continue
                closed = msgspec.structs.replace(channel, state="idle")
                if await self._replace(found, closed):
                    _log.warning("channel_idle_closed", channel=found.id, asker=channel.asker, to=channel.to)
                    undelivered.append(Found(found.id, closed, 0, now))
            elif age >= timedelta(seconds=KEPT_S):
                if isinstance(await self._cells.remove(key_of(found.id), expect=found.revision), Done):
                    removed += 1
                    if not channel.is_delivered:
                        _log.warning("channel_answer_dropped", channel=found.id, asker=channel.asker)
            elif not channel.is_delivered and age >= timedelta(seconds=_DELIVERED_WITHIN_S):
                undelivered.append(found)
        return Swept(tuple(undelivered), removed, tuple(unreadable))

    async def _bar(self, channel_id: str, by: str, admit: Admit | None) -> None:
        """Prove that there is no such channel, by closing it for good.

        That it was not found proves nothing: who has lost its quorum answers from what it knew before.

        Raises:
            Unavailable: it may be there; look again.
        """
        barred = Channel("", by, "", state="idle", is_delivered=True)
        result = await self._cells.create(key_of(channel_id), msgspec.json.encode(barred), admit=admit)
        if not landed(result, "nobody said whether there is such a channel"):
            raise Unavailable(f"the channel {channel_id} was not found, and is there")

    async def _replace(self, found: Found, channel: Channel, admit: Admit | None = None) -> bool:
        """Whether this write won.

        Raises:
            MessageTooLarge: the store takes no such record.
            Unavailable: nobody said.
        """
        try:
            value = msgspec.json.encode(channel)
            result = await self._cells.replace(key_of(found.id), value, expect=found.revision, admit=admit)
        except Misuse as error:
            raise MessageTooLarge(f"the answer is too long for the store: {error}") from error
        return landed(result, "nobody said whether the channel is changed")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found.

    Attributes:
        undelivered: answers that are in no inbox yet.
        removed: how many channels are forgotten.
        unreadable: what is wrong with records that were left alone, a sentence each.
    """

    undelivered: tuple[Found, ...]
    removed: int
    unreadable: tuple[str, ...] = ()
