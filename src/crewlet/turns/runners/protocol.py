"""Protocol v1 between Crewlet and a program that is a seat: one JSON object a line. Pure.

`docs/command-protocol.md` describes it for those who write such programs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, assert_never, cast

import msgspec

from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.turns.runners import wording
from crewlet.turns.turn import Fence, OutgoingMail, RoundUsage, Turn, TurnResult

VERSION = 1
MAX_TOKENS = 10**12
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
class CallLine:
    """Call a tool; to be answered."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckLine:
    """Is the term still good; to be answered."""


@dataclass(frozen=True, slots=True)
class UsageLine:
    """What one answer of a model cost; its round is counted by whoever reads."""

    model: str
    input_tokens: int
    output_tokens: int

    def of_round(self, number: int) -> RoundUsage:
        return RoundUsage(number, self.model, self.input_tokens, self.output_tokens)


@dataclass(frozen=True, slots=True)
class VersionLine:
    """The version of the protocol that the program speaks. Without such a line it speaks version 1."""

    version: int


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """A worker has loaded its function."""


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A worker could not load its function, and ends."""

    detail: str


@dataclass(frozen=True, slots=True)
class RaisedLine:
    """A worker's function ended its turn without an outcome. `ends`: it asked for the end of its process too."""

    detail: str
    ends: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    """The end of the turn."""

    result: TurnResult


@dataclass(frozen=True, slots=True)
class BadLine:
    """Not a message of this protocol; `reason` says what is wrong and shows the beginning of the line."""

    reason: str


Line = SendLine | ProgressLine | AnsweredLine | CallLine | CheckLine | UsageLine | VersionLine | OutcomeLine | BadLine
WorkerLine = Line | ReadyLine | BrokenLine | RaisedLine


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


class _CallBody(msgspec.Struct, frozen=True):
    tool: str
    arguments: dict[str, Any] = {}


class _Call(msgspec.Struct, frozen=True):
    call: _CallBody


class _Check(msgspec.Struct, frozen=True):
    check: dict[str, Any]


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _UsageBody(msgspec.Struct, frozen=True):
    model: Annotated[str, msgspec.Meta(max_length=200)]
    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0


class _Usage(msgspec.Struct, frozen=True):
    usage: _UsageBody


class _Version(msgspec.Struct, frozen=True):
    v: int


class _Ready(msgspec.Struct, frozen=True):
    ready: _Version


class _Detail(msgspec.Struct, frozen=True):
    detail: str


class _Broken(msgspec.Struct, frozen=True):
    broken: _Detail


class _RaisedBody(msgspec.Struct, frozen=True):
    detail: str
    ends: bool = False


class _Raised(msgspec.Struct, frozen=True):
    raised: _RaisedBody


_Message = _Outcome | _Progress | _Answered | _Send | _Call | _Check | _Usage | _Version | _Ready | _Broken | _Raised
_VERBS: Mapping[str, type[_Message]] = {
    "outcome": _Outcome,
    "progress": _Progress,
    "answered": _Answered,
    "send": _Send,
    "call": _Call,
    "check": _Check,
    "usage": _Usage,
    "v": _Version,
}
_WORKER_VERBS: Mapping[str, type[_Message]] = {"ready": _Ready, "broken": _Broken, "raised": _Raised, **_VERBS}


def start_line(turn: Turn) -> bytes:
    """The one line that a program gets to begin with."""
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
            "tools": [_described(tool) for tool in turn.tools.infos] if turn.tools is not None else [],
            "term": _term(turn.fence),
        }
    )


def _described(tool: ToolInfo) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "schema": tool.schema}


def _term(fence: Fence) -> dict[str, Any]:
    term, good_until = fence.term, fence.good_until
    return {
        "resource": term.resource,
        "owner": term.owner,
        "epoch": term.epoch,
        "good_until": None if math.isinf(good_until) else good_until,
    }


def sent_line(message_id: str) -> bytes:
    """The answer to a `send` that was accepted."""
    return msgspec.json.encode({"sent": {"id": message_id}})


def refused_line(reason: str) -> bytes:
    """The answer to a `send` that was not, and will not be."""
    return msgspec.json.encode({"refused": {"reason": reason}})


def term_line(fence: Fence) -> bytes:
    """The answer to a `check`: the term, and the instant up to which it is good now."""
    return msgspec.json.encode({"term": _term(fence)})


def result_line(answer: ToolAnswer) -> bytes:
    """The answer to a `call`."""
    return msgspec.json.encode({"result": {"text": answer.text, "is_error": answer.is_error}})


def parse(line: bytes, *, conversation: str) -> Line:
    """Read one line of a program's output. Fields that are not known here are left alone, verbs are not.

    Args:
        conversation: where a `send` belongs that names none.
    """
    message = parse_worker(line, conversation=conversation, verbs=_VERBS)
    assert not isinstance(message, ReadyLine | BrokenLine | RaisedLine)
    return message


def parse_worker(
    line: bytes, *, conversation: str = "", verbs: Mapping[str, type[_Message]] = _WORKER_VERBS
) -> WorkerLine:
    """Read one line of the worker of a `python` seat, which says a little more than a program."""
    try:
        message: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return BadLine(f"{wording.undecodable(line)}: {_shown(line)}")
    if not isinstance(message, dict):
        return BadLine(f"not a JSON object: {_shown(line)}")
    fields = cast("dict[str, Any]", message)
    said = [verb for verb in verbs if verb in fields]
    if len(said) != 1:
        return BadLine(f"not exactly one of {', '.join(verbs)}: {_shown(line)}")
    try:
        return _line(msgspec.convert(fields, verbs[said[0]]), conversation)
    except msgspec.ValidationError as error:
        return BadLine(f"{wording.invalid(error)}: {_shown(line)}")


def _line(body: _Message, conversation: str) -> WorkerLine:
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
        case _Call(call):
            return CallLine(call.tool, call.arguments)
        case _Check():
            return CheckLine()
        case _Usage(usage):
            return UsageLine(usage.model, usage.input_tokens, usage.output_tokens)
        case _Version(version):
            return VersionLine(version)
        case _Ready():
            return ReadyLine()
        case _Broken(broken):
            return BrokenLine(broken.detail)
        case _Raised(raised):
            return RaisedLine(raised.detail, raised.ends)
        case _:
            assert_never(body)


def _shown(line: bytes) -> str:
    text = line[:_SHOWN_BYTES].decode("utf-8", "replace")
    return repr(text) + ("…" if len(line) > _SHOWN_BYTES else "")
