"""The questions in a seat's mail: which its turn may answer, and which nobody waits for any more."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import structlog

from crewlet.mail.channel import ChannelClosed
from crewlet.mail.channels import Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.work_key import work_key
from crewlet.ports.errors import Unavailable

_log = structlog.get_logger()


class Questions:
    """The questions that a turn on this mail may answer, and what it has done about them.

    Attributes:
        asked: their channels, each with the id of the mail by which it may be answered: the one that asks, or the
            answer to what its seat had asked upon it.
    """

    def __init__(self, mail: Sequence[Envelope]) -> None:
        asked: dict[str, str] = {}
        for event in mail:
            for channel in _asked_by(event):
                if isinstance(channel, str):
                    asked.setdefault(channel, event.id)
        self.asked: Mapping[str, str] = asked
        self._answered: set[str] = set()
        self._passed_on: set[str] = set()

    @property
    def unanswered(self) -> Sequence[str]:
        """Those that have no answer of this turn's."""
        return [channel for channel in self.asked if channel not in self._answered]

    def left(self) -> Sequence[str]:
        """Those of them that it has asked nobody upon either: they wait for a word of this turn."""
        return [channel for channel in self.unanswered if channel not in self._passed_on]

    def answered(self, channel: str) -> None:
        """It has its answer, of this run or an earlier one."""
        self._answered.add(channel)

    def passed_on(self, channels: Iterable[str]) -> None:
        """A colleague was asked upon them: they are answered when that one has."""
        self._passed_on.update(channels)


def _asked_by(event: Envelope) -> Iterator[object]:
    if event.type == "a2a_request":
        yield event.payload.get("channel")
    elif event.type == "a2a_message" and isinstance(upon := event.payload.get("upon"), list):
        yield from cast("list[object]", upon)


def answering(handle: str, mail_id: str) -> str:
    """What answers by this mail are known by, whatever the mail is worked together with: a run that broke may come
    back in other company."""
    return work_key(handle, (mail_id,))


def questions_in(mail: Sequence[Envelope]) -> dict[str, str]:
    """The channels of the questions that mail asks, by the id of each mail that asks one."""
    return {
        event.id: channel
        for event in mail
        if event.type == "a2a_request" and isinstance(channel := event.payload.get("channel"), str)
    }


async def closed_questions(channels: Channels, handle: str, asked: Mapping[str, str]) -> dict[str, str]:
    """The questions that were given up, or answered by other mail than their own, each with the reason in a sentence.

    One that its own mail has answered is none of them: a run that broke after its answer goes on with the rest. What
    cannot be read counts as open, since an answer to a closed channel is refused all the same.

    Args:
        asked: as `questions_in` tells them.
    """
    reasons = await asyncio.gather(*(_why_closed(channels, handle, *each) for each in asked.items()))
    return {mail_id: reason for mail_id, reason in zip(asked, reasons, strict=True) if reason}


async def _why_closed(channels: Channels, handle: str, mail_id: str, channel_id: str) -> str:
    try:
        found = await channels.find(channel_id)
    except (Unavailable, ChannelClosed) as error:
        _log.warning("channel_unread", seat=handle, channel=channel_id, error=str(error))
        return ""
    channel = found.channel if found is not None else None
    if channel is not None and channel.state == "idle":
        return "its question waited too long, and was given up"
    if channel is not None and channel.state == "answered" and channel.by_work != answering(handle, mail_id):
        return "its question has its answer"
    return ""
