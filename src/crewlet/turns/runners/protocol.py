"""Protocol v1 between Crewlet and a program that is a seat: one JSON object a line. Pure.

`docs/command-protocol.md` describes it for those who write such programs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec

from crewlet.turns.turn import OutgoingMail, Turn, TurnResult

VERSION = 1
_SHOWN_BYTES = 120


@dataclass(frozen=True, slots=True)
class SendLine:
    """Send mail; to be answered. Without a conversation of its own the mail stays in the turn's."""

    mail: OutgoingMail


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """A line for people."""

    text: str


@dataclass(frozen=True, slots=True)
class AnsweredLine:
    """A chat message that waited in the thread which this turn answers."""

    chat_message: str


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    """The end of the turn."""

    result: TurnResult


@dataclass(frozen=True, slots=True)
class BadLine:
    """Not a message of this protocol; `reason` says what is wrong and shows the beginning of the line."""

    reason: str


Line = SendLine | ProgressLine | AnsweredLine | OutcomeLine | BadLine


class _SendBody(msgspec.Struct, frozen=True):
    to: str
    body: str
    subject: str = ""
    conversation: str | None = None


class _Outcome(msgspec.Struct, frozen=True):
    # `stopped` is a person's word, not a program's.
    outcome: Literal["delivered", "no_action", "blocked", "failed"]
    detail: str = ""


class _Progress(msgspec.Struct, frozen=True):
    progress: str


class _Answered(msgspec.Struct, frozen=True):
    answered: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _Send(msgspec.Struct, frozen=True):
    send: _SendBody


_VERBS: Mapping[str, type[_Outcome] | type[_Progress] | type[_Answered] | type[_Send]] = {
    "outcome": _Outcome,
    "progress": _Progress,
    "answered": _Answered,
    "send": _Send,
}


def start_line(turn: Turn) -> bytes:
    """The one line that a program gets to begin with."""
    term = turn.fence.term
    good_until = turn.fence.good_until
    return msgspec.json.encode(
        {
            "v": VERSION,
            "seat": turn.seat.handle,
            "turn_id": turn.turn_id,
            "work_key": turn.work_key,
            "triggers": [event.id for event in turn.mail if event.is_ledgered],
            "mail": [
                {
                    "id": event.id,
                    "type": event.type,
                    "source": event.source,
                    "to": event.to,
                    "subject": event.subject,
                    "body": event.body,
                    "conversation": event.conversation,
                    "chat_message": event.chat_message,
                    "timestamp": event.timestamp,
                    "payload": event.payload,
                }
                for event in turn.mail
            ],
            "term": {
                "resource": term.resource,
                "owner": term.owner,
                "epoch": term.epoch,
                "good_until": None if math.isinf(good_until) else good_until,
            },
        }
    )


def sent_line(message_id: str) -> bytes:
    """The answer to a `send` that was accepted."""
    return msgspec.json.encode({"sent": {"id": message_id}})


def refused_line(reason: str) -> bytes:
    """The answer to a `send` that was not, and will not be."""
    return msgspec.json.encode({"refused": {"reason": reason}})


def parse(line: bytes, *, conversation: str) -> Line:
    """Read one line of a program's output. Fields that are not known here are left alone, verbs are not.

    Args:
        conversation: where a `send` belongs that names none.
    """
    try:
        message: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return BadLine(f"not JSON: {_shown(line)}")
    if not isinstance(message, dict):
        return BadLine(f"not a JSON object: {_shown(line)}")
    fields = cast("dict[str, Any]", message)
    verbs = [verb for verb in _VERBS if verb in fields]
    if len(verbs) != 1:
        return BadLine(f"not exactly one of {', '.join(_VERBS)}: {_shown(line)}")
    try:
        body = msgspec.convert(fields, _VERBS[verbs[0]])
    except msgspec.ValidationError as error:
        return BadLine(f"{error}: {_shown(line)}")
    match body:
        case _Outcome(outcome, detail):
            return OutcomeLine(TurnResult(outcome, detail))
        case _Progress(text):
            return ProgressLine(text)
        case _Answered(chat_message):
            return AnsweredLine(chat_message)
        case _Send(send):
            thread = conversation if send.conversation is None else send.conversation
            return SendLine(OutgoingMail(send.to, send.body, send.subject, thread))


def _shown(line: bytes) -> str:
    text = line[:_SHOWN_BYTES].decode("utf-8", "replace")
    return repr(text) + ("…" if len(line) > _SHOWN_BYTES else "")
