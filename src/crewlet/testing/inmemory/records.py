"""What happened to the seats of a company in memory: for assertions, and for whoever reads a failed one."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never, cast

import msgspec

from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.ports.history import (
    CallBegan,
    CallEnded,
    Dispatched,
    Happening,
    NoHistory,
    Progressed,
    RoundBegan,
    RoundEnded,
    TurnBegan,
    TurnEnded,
)
from crewlet.ports.mail import Subscription
from crewlet.seats.records import LeaseRecord, resource_of

_LEASES, _LEDGER = "crewlet_leases", "crewlet_ledger"
_SHOWN_CHARS = 160


@dataclass(slots=True, eq=False)
class ToolCall:
    """One call of a tool that passed the fence.

    Attributes:
        server: "" for a tool of Crewlet's own.
        arguments: as they were given; of very long ones only `{"cut": TEXT}`.
        key: its idempotency key, the same in each run of the same work.
        is_effect: it counts as having changed something outside.
        answer: None where none came back.
    """

    tool: str
    server: str
    arguments: Mapping[str, Any]
    key: str
    is_effect: bool
    answer: str | None = None
    is_error: bool = False


@dataclass(slots=True, eq=False)
class Run:
    """One run of a turn.

    Attributes:
        mail: the ids of the mails that it worked.
        began_s: virtual seconds since the company began.
        outcome: its word; `broke`, `fenced`, `panicked`, `parked`; "" while it runs, and where its node died in it.
        is_recorded: the ledger has it: its mail is finished with.
        tokens: what it reported to have used.
    """

    turn_id: str
    seat: str
    node: str
    epoch: int
    runner: str
    mail: tuple[str, ...]
    work_key: str
    began_s: float
    outcome: str = ""
    detail: str = ""
    is_recorded: bool = False
    rounds: int = 0
    tokens: int = 0
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    progress: list[str] = field(default_factory=list[str])
    sent: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Seat and id of each mail that it sent, of those that the broker had already too."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of a seat's history."""

    at_s: float
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:10.3f} s  {self.node:<8} {self.text}"


class Records:
    """Everything that happened, as the store, the broker and the nodes themselves had it."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.mail: dict[tuple[str, str], Envelope] = {}
        self.buried: dict[tuple[str, str], str] = {}
        self.holders: dict[str, tuple[str, int]] = {}
        self.on_recorded: Callable[[Run], None] = _nothing
        self.stirred = asyncio.Event()
        """Set whenever something has happened."""
        self._moments: dict[str, list[Moment]] = defaultdict(list)

    def note(self, seat: str, node: str, text: str) -> None:
        """Add a line to a seat's history."""
        self._moments[seat].append(Moment(_now(), node, _line(text)))
        self.stirred.set()

    def note_all(self, seats: Iterable[str], node: str, text: str) -> None:
        """Add a line to the history of each of these."""
        for seat in seats:
            self.note(seat, node, text)

    def history(self, seat: str) -> str:
        """A seat's history as text."""
        lines = [str(moment) for moment in self._moments.get(seat, ())]
        return "\n".join([f"what happened to {seat}:", *(lines or ["  nothing"])])

    def runs_of(self, seat: str, mail_id: str | None = None) -> list[Run]:
        """The runs of a seat, or those on one of its mails, oldest first."""
        own = (run for run in self.runs.values() if run.seat == seat)
        return [run for run in own if mail_id is None or mail_id in run.mail]

    def finishing(self, seat: str, mail_id: str) -> list[Run]:
        """The runs that finished a mail: one, unless something is very wrong."""
        return [run for run in self.runs_of(seat, mail_id) if run.is_recorded]

    # What the store and the broker see

    def wrote(self, bucket: str, key: str, value: bytes | None, revision: int) -> None:
        del revision
        if value is None:
            return
        if bucket == _LEDGER:
            self._recorded(cast("dict[str, Any]", msgspec.json.decode(value)))
        elif bucket == _LEASES:
            self._leased(key, msgspec.json.decode(value, type=LeaseRecord))

    def was_read(self, bucket: str, key: str, is_there: bool) -> None:
        """Reading changes nothing."""

    def accepted(self, topic: str, message_id: str, sequence: int, data: bytes) -> None:
        del message_id, sequence
        seat = topic.split(".")[2] if topic.startswith("crewlet.agent.") else None
        try:
            envelope = msgspec.json.decode(data, type=Envelope)
        except msgspec.MsgspecError:
            return
        about = f": {envelope.subject or envelope.body}"
        if seat is not None and topic == topics.inbox(seat).topic:
            self.mail[seat, envelope.id] = envelope
            self.note(seat, "", f"mail {_short(envelope.id)} from {envelope.source}{about}")
            if envelope.source.startswith("seat:"):
                sender = envelope.source.removeprefix("seat:")
                self.note(sender, "", f"sends mail {_short(envelope.id)} to {seat}{about}")
        elif topic.startswith("dlq."):
            self.buried[envelope.to, envelope.id] = topic
            self.note(envelope.to, "", f"mail {_short(envelope.id)} is dead: its deliveries are used up")

    def sent(self, data: bytes) -> None:
        """Somebody has published a mail, perhaps one that is known."""
        try:
            envelope = msgspec.json.decode(data, type=Envelope)
        except msgspec.MsgspecError:
            return
        run = self.runs.get(envelope.parent_turn_id)
        if run is not None:
            run.sent.add((envelope.to, envelope.id))

    def acked(self, topic: str, message_id: str, sequence: int) -> None:
        del sequence
        self.note(topic.split(".")[2], "", f"mail {_short(message_id)} is acked")

    def deleted(self, subscription: Subscription) -> None:
        """A mailbox is gone: nothing that is told of a seat."""

    # What the nodes say

    def happened(self, node: str, happening: Happening) -> None:
        """A node has noted something in its own history."""
        match happening:
            case TurnBegan():
                run = Run(
                    happening.turn_id,
                    happening.seat,
                    node,
                    happening.epoch,
                    happening.runner,
                    happening.triggers,
                    happening.work_key,
                    _now(),
                )
                self.runs[run.turn_id] = run
                mail = ", ".join(map(_short, run.mail))
                self.note(run.seat, node, f"turn {_short(run.turn_id)} ({run.runner}) begins on {mail}")
            case Dispatched():
                self.note(happening.seat, node, f"mail goes back ({happening.answer}): {happening.reason}")
            case RoundBegan() | RoundEnded() | CallBegan() | CallEnded() | Progressed() | TurnEnded():
                run = self.runs[happening.turn_id]
                self.note(run.seat, node, _in_turn(run, happening))
            case _:
                assert_never(happening)

    def _recorded(self, record: Mapping[str, Any]) -> None:
        run = self.runs.get(str(record.get("turn_id", "")))
        if run is not None and not run.is_recorded:
            run.is_recorded = True
            run.outcome, run.detail = str(record["outcome"]), str(record.get("detail", ""))
            self.note(run.seat, run.node, f"turn {_short(run.turn_id)} is recorded: {_ending(run)}")
            self.on_recorded(run)

    def _leased(self, key: str, record: LeaseRecord) -> None:
        kind, _, seat = (resource_of(key) or "").partition(":")
        if kind != "seat":
            return
        node = record.owner.partition(":")[0]
        if record.released:
            if self.holders.pop(seat, None) is not None:
                self.note(seat, node, f"gives the seat back (epoch {record.epoch})")
        elif record.epoch > 0 and self.holders.get(seat) != (record.owner, record.epoch):
            self.holders[seat] = record.owner, record.epoch
            self.note(seat, node, f"holds the seat (epoch {record.epoch})")


class ToldHistory(NoHistory):
    """The history port of one node: tells the records, and forgets."""

    def __init__(self, records: Records, node: str) -> None:
        self._records = records
        self._node = node

    def note(self, happening: Happening) -> None:
        self._records.happened(self._node, happening)

    async def keep(self, happening: Happening) -> None:
        self.note(happening)


def _in_turn(run: Run, happening: RoundBegan | RoundEnded | CallBegan | CallEnded | Progressed | TurnEnded) -> str:
    """Keep in a run what happened in it, and say so."""
    match happening:
        case RoundBegan(_, number):
            run.rounds = number
            return f"round {number}"
        case RoundEnded(_, number, model, input_tokens, output_tokens):
            run.tokens += input_tokens + output_tokens
            return f"round {number} was answered by {model}: {input_tokens} + {output_tokens} tokens"
        case CallBegan():
            arguments = _arguments(happening.arguments)
            call = ToolCall(happening.tool, happening.server, arguments, happening.key, happening.is_effect)
            run.calls.append(call)
            effect = f", an effect under key {_short(call.key)}" if call.is_effect else ""
            return f"calls {call.tool} {happening.arguments}{effect}"
        case CallEnded(_, number, is_error, answer):
            call = run.calls[number - 1]
            call.answer, call.is_error = answer, is_error
            return f"{call.tool} {'fails' if is_error else 'answers'}: {answer}"
        case Progressed(_, text):
            run.progress.append(text)
            return f"says: {text}"
        case TurnEnded(_, outcome, detail):
            if not run.is_recorded:
                run.outcome, run.detail = outcome, detail
            return f"turn {_short(run.turn_id)} ends: {outcome}" + (f": {detail}" if detail else "")
        case _:
            assert_never(happening)


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        read: Any = json.loads(text)
    except ValueError:
        return {"cut": text}
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


def _ending(run: Run) -> str:
    return f"{run.outcome}: {run.detail}" if run.detail else run.outcome


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:8]


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"


def _nothing(run: Run) -> None:
    del run


def _now() -> float:
    return asyncio.get_running_loop().time()
