"""One channel: its record, and the two mails that belong to it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal

import msgspec

from crewlet.kit.decoding import decode
from crewlet.mail.envelope import Envelope
from crewlet.mail.work_key import channel_mail_id
from crewlet.ports.cells import Entry
from crewlet.ports.errors import CrewletError

MAX_ANSWER_CHARS = 100_000
"""Of a question too. One of control characters alone takes six bytes for each: with little beside it, a record takes
that."""

UNANSWERED = "Nobody has answered this question within an hour; the channel is closed."


class ChannelClosed(CrewletError):
    """The question is answered, was given up, or is not this seat's to answer."""


class Channel(msgspec.Struct, frozen=True, omit_defaults=True):
    """One channel.

    Attributes:
        asker, to: who asks whom.
        question: the beginning of its text, as the answer quotes it; "" once that is delivered.
        depth: how often the work was passed on, the question included.
        trace_id: of the asking turn.
        state: `open`, `answered`, or `idle` where it was closed without an answer.
        answer: its text; "" once it is delivered.
        digest: of the text.
        by_work: the work of the mail by which it was answered, which may say so again.
        is_delivered: the mail with the answer is in the asker's inbox.
        upon: the channels in which the asker itself was asked, and that it may answer when it knows the answer.
    """

    asker: str
    to: str
    question: str
    depth: int = 0
    trace_id: str = ""
    state: Literal["open", "answered", "idle"] = "open"
    answer: str = ""
    digest: str = ""
    by_work: str = ""
    is_delivered: bool = False
    upon: tuple[str, ...] = ()

    def request(self, channel_id: str, question: str, timestamp: str, parent_turn_id: str) -> Envelope:
        """The mail with the question, in full."""
        return Envelope(
            id=channel_mail_id(channel_id, "request"),
            type="a2a_request",
            timestamp=timestamp,
            source=f"seat:{self.asker}",
            to=self.to,
            body=question,
            payload={"channel": channel_id},
            trace_id=self.trace_id,
            delegation_depth=self.depth,
            parent_turn_id=parent_turn_id,
        )

    def message(self, channel_id: str, timestamp: str, parent_turn_id: str = "") -> Envelope:
        """The mail with the answer. It lies no deeper than its question."""
        payload: dict[str, object] = {"channel": channel_id, "question": self.question}
        if self.upon:
            payload["upon"] = list(self.upon)
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


def digest_of(text: str) -> str:
    """By which an answer is known again."""
    return sha256(text.encode()).hexdigest()


_CHARS = frozenset("0123456789abcdef-")


def is_id(channel_id: str) -> bool:
    """Whether it may name a channel."""
    return 0 < len(channel_id) <= 64 and _CHARS.issuperset(channel_id)


def key_of(channel_id: str) -> str:
    """Under which its record is kept.

    Raises:
        ValueError: it names none.
    """
    if not is_id(channel_id):
        raise ValueError(f"{channel_id!r} is no channel")
    return f"channel.{channel_id}"


def read_all(entries: Sequence[Entry]) -> tuple[Sequence[Found], Sequence[str]]:
    """The channels, and what is wrong with the records that are none."""
    channels: list[Found] = []
    unreadable: list[str] = []
    for entry in entries:
        try:
            channels.append(read(entry))
        except ChannelClosed as error:
            unreadable.append(str(error))
    return channels, unreadable


def read(entry: Entry) -> Found:
    """The channel in a record.

    Raises:
        ChannelClosed: it is none, or not of this version.
    """
    channel_id = entry.key.partition(".")[2]
    if not is_id(channel_id):
        raise ChannelClosed(f"the record {entry.key} is no channel's")
    try:
        channel = decode(entry.value, Channel)
    except msgspec.MsgspecError as error:
        raise ChannelClosed(f"the record {entry.key} cannot be read here: {error}") from error
    return Found(channel_id, channel, entry.revision, entry.written_at)
