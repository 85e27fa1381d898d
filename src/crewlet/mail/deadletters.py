"""What a dead letter looks like on the wire: its subject, its headers, its id."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated

import msgspec

from crewlet.kit.decoding import Instant, decode
from crewlet.kit.lines import one_line
from crewlet.mail.patterns import digest, readable
from crewlet.ports.deadletters import DeadLetter, Handling
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import Delivery, Subscription

PREFIX = "dlq."
HEADROOM_BYTES = 16 * 1024
"""How much smaller than the broker's ceiling mail must be, so that its dead letter with its history fits too."""

ID_HEADER = "Crewlet-Message-Id"
_OURS = ("Crewlet-", "Nats-")
_REASON_CHARS = 500
_HISTORY_REASON_CHARS = 100
_HISTORY_LENGTH = 26

_Row = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], str, Instant, str]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter to be written. A subject has one letter at most: burying twice finds it there."""

    subject: str
    headers: dict[str, str]


def letter_of(
    subscription: Subscription,
    delivery: Delivery,
    headers: Mapping[str, str],
    reason: str,
    history: Sequence[Handling],
) -> Letter:
    """The dead letter of a delivery.

    Args:
        headers: the message's own; what the broker or Crewlet put there is left out.
    """
    micros = round(delivery.published_at.timestamp() * 1_000_000)
    subject = f"{subjects_of(subscription, delivery.id)}.{delivery.sequence}-{micros}"
    facts = {
        ID_HEADER: delivery.id,
        "Crewlet-Topic": subscription.topic,
        "Crewlet-Group": subscription.group,
        "Crewlet-Sequence": str(delivery.sequence),
        "Crewlet-Deliveries": str(delivery.deliveries),
        "Crewlet-Published-At": delivery.published_at.isoformat(),
    }
    if text := one_line(reason, _REASON_CHARS):
        facts["Crewlet-Reason"] = text
    if history:
        facts["Crewlet-History"] = _history_text(history)
    return Letter(subject, {**publisher_headers(headers), **facts})


def without_history(letter: Letter) -> Letter:
    """The same letter in fewer bytes, for a message that leaves no room for it."""
    return Letter(letter.subject, {name: text for name, text in letter.headers.items() if name != "Crewlet-History"})


def subjects_of(subscription: Subscription, message_id: str) -> str:
    """The head of every subject on which letters of one message are: a readable part, then what identifies."""
    return _head(subscription) + sha256(message_id.encode()).hexdigest()[:16]


def _head(subscription: Subscription) -> str:
    return f"{PREFIX}{subscription.topic}.{readable(subscription.group)}.{digest(subscription)}."


def subjects_under(topic: str) -> str:
    """A pattern over the subjects of the letters of a topic or of a pattern of topics, and of some more."""
    return f"{PREFIX}{topic}" if topic.endswith(">") else f"{PREFIX}{topic}.>"


def read_letter(place: int, subject: str, headers: Mapping[str, str], data: bytes, stored_at: datetime) -> DeadLetter:
    """A stored dead letter.

    Raises:
        ValueError: it is none of ours.
    """
    try:
        subscription = Subscription(headers["Crewlet-Topic"], headers["Crewlet-Group"])
        if not subject.startswith(_head(subscription)):
            raise ValueError(f"the message at {place} lies on the subject of another mailbox than it names")
        return DeadLetter(
            id=letter_id(place, subject),
            subscription=subscription,
            message_id=headers[ID_HEADER],
            data=data,
            headers=publisher_headers(headers),
            sequence=_count(headers["Crewlet-Sequence"]),
            deliveries=_count(headers["Crewlet-Deliveries"]),
            reason=headers.get("Crewlet-Reason", ""),
            published_at=_instant(headers["Crewlet-Published-At"]),
            buried_at=stored_at,
            history=_history(headers.get("Crewlet-History", "[]")),
        )
    except KeyError as error:
        raise ValueError(f"the message at {place} lacks {error}") from error


def letter_id(place: int, subject: str) -> str:
    """The name of the letter that lies at a place of the dead-letter stream."""
    return f"{place}-{sha256(subject.encode()).hexdigest()[:8]}"


def place_of(letter_id: str) -> int:
    """Where a letter of this id lies.

    Raises:
        Misuse: it is not the id of a letter.
    """
    head, dash, mark = letter_id.partition("-")
    is_number = head.isascii() and head.isdigit() and len(head) < 19 and int(head) > 0
    if not (dash and is_number and len(mark) == 8 and all(char in "0123456789abcdef" for char in mark)):
        raise Misuse(f"{letter_id!r} is not the id of a dead letter")
    return int(head)


def publisher_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a message's publisher gave."""
    return {name: text for name, text in headers.items() if not name.startswith(_OURS)}


def _history_text(history: Sequence[Handling]) -> str:
    rows = [
        [each.number, each.owner[:120], each.at.isoformat(), one_line(each.reason, _HISTORY_REASON_CHARS)]
        for each in history[-_HISTORY_LENGTH:]
    ]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def _history(text: str) -> tuple[Handling, ...]:
    rows = decode(text.encode(), list[_Row])
    return tuple(Handling(number, owner, _utc(at), reason) for number, owner, at, reason in rows)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"{text[:30]!r} is no count")
    return int(text)


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text[:30]!r} has no zone")
    return _utc(at)


def _utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{at} is out of range") from error
