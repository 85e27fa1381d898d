"""The questions in a seat's mail: which its turn may answer, and which nobody waits for any more."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import structlog

from crewlet.mail.channels import ChannelClosed, Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.work_key import work_key
from crewlet.ports.errors import Unavailable
from crewlet.turns.intake import Intake

_log = structlog.get_logger()


def questions_of(mail: Sequence[Envelope]) -> Mapping[str, str]:
    """The channels that a turn on this mail may answer, each with the id of the mail by which it may: the one that
    asks, or the answer to what its seat had asked upon it."""
    asked: dict[str, str] = {}
    for event in mail:
        for channel in _asked_by(event):
            if isinstance(channel, str):
                asked.setdefault(channel, event.id)
    return asked


def _asked_by(event: Envelope) -> Iterator[object]:
    if event.type == "a2a_request":
        yield event.payload.get("channel")
    elif event.type == "a2a_message" and isinstance(upon := event.payload.get("upon"), list):
        yield from cast("list[object]", upon)


def answering(handle: str, mail_id: str) -> str:
    """What answers by this mail are known by, whatever the mail is worked together with: a run that broke may come
    back in other company."""
    return work_key(handle, (mail_id,))


async def closed_questions(channels: Channels, handle: str, mail: Intake) -> dict[str, str]:
    """The questions that were given up, or answered by other mail than their own, each with the reason in a sentence.

    One that its own mail has answered is none of them: a run that broke after its answer goes on with the rest. What
    cannot be read counts as open, since an answer to a closed channel is refused all the same.
    """
    asked = {
        event.id: channel
        for event in mail.events
        if event.type == "a2a_request" and isinstance(channel := event.payload.get("channel"), str)
    }
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
