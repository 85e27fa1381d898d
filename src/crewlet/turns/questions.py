"""The questions in a seat's mail: which its turn may answer, and which nobody waits for any more."""

from collections.abc import Iterator, Sequence
from typing import cast

import structlog

from crewlet.mail.channels import Channel, ChannelClosed, Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.work_key import work_key
from crewlet.ports.errors import Unavailable
from crewlet.turns.intake import Intake

_log = structlog.get_logger()


def questions_of(mail: Sequence[Envelope]) -> Sequence[str]:
    """The channels that a turn on this mail may answer, each once: in which the mail asks, and upon which its seat had
    asked what the mail answers."""
    return list(dict.fromkeys(each for each in _asked(mail) if isinstance(each, str)))


def _asked(mail: Sequence[Envelope]) -> Iterator[object]:
    for event in mail:
        if event.type == "a2a_request":
            yield event.payload.get("channel")
        elif event.type == "a2a_message" and isinstance(upon := event.payload.get("upon"), list):
            yield from cast("list[object]", upon)


async def closed_questions(channels: Channels, handle: str, mail: Intake) -> dict[str, str]:
    """The questions that were given up, or have the answer of other work, each with the reason in a sentence.

    One that this work has answered is none of them: a run that broke after its answer goes on with the rest. What
    cannot be read counts as open, since an answer to a closed channel is refused all the same.
    """
    closed: dict[str, str] = {}
    for event in mail.events:
        channel_id = event.payload.get("channel")
        if event.type != "a2a_request" or not isinstance(channel_id, str):
            continue
        try:
            found = await channels.find(channel_id)
        except (Unavailable, ChannelClosed) as error:
            _log.warning("channel_unread", seat=handle, channel=channel_id, error=str(error))
            continue
        works = (work_key(handle, (event.id,)), work_key(handle, mail.triggers))
        if found is not None and (reason := _why_closed(found.channel, works)):
            closed[event.id] = reason
    return closed


def _why_closed(channel: Channel, works: tuple[str, ...]) -> str:
    if channel.state == "idle":
        return "its question waited too long, and was given up"
    if channel.state == "answered" and channel.by_work not in works:
        return "its question has its answer"
    return ""
