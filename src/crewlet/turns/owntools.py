"""Crewlet's own tools: what every seat's agent can do without a tool server.

They keep what mail promises: an id is derived from the work, so that a re-run of it writes the same mail. `ask` counts
as an effect all the same: a re-run that words its question differently asks another one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from crewlet.mail.channel import MAX_ANSWER_CHARS, Channel, ChannelClosed, digest_of
from crewlet.mail.channels import Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import MailRefused
from crewlet.ports.tools import ToolAnswer, ToolInfo, ToolNotCalled
from crewlet.turns.guards import MAX_DELEGATION_DEPTH
from crewlet.turns.questions import Questions, answering
from crewlet.turns.sending import TurnMail
from crewlet.turns.toolbox import Call, Tool
from crewlet.turns.turn import OutgoingMail

MAX_NOTE_CHARS = 10_000


class Notes(Protocol):
    """Where a seat's agent puts down what it wants to remember."""

    async def keep(self, text: str) -> str:
        """Keep a note, and say in a sentence where it went.

        Raises:
            Unavailable: it may not be kept.
        """
        ...


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _SendMail(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    body: _Text
    subject: str = ""


class _Ask(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    question: _Text


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    text: _Text
    channel: str = ""


class _Note(msgspec.Struct, forbid_unknown_fields=True):
    text: _Text


_HANDLE = {"type": "string", "description": "a colleague's handle"}
_TEXT = {"type": "string", "minLength": 1}

SEND_MAIL = ToolInfo(
    "send_mail",
    "Write to a colleague. It arrives in their inbox; nobody waits for it.",
    {
        "type": "object",
        "properties": {"to": _HANDLE, "body": _TEXT, "subject": {"type": "string", "description": "one line"}},
        "required": ["to", "body"],
        "additionalProperties": False,
    },
    is_read_only=False,
)
ASK = ToolInfo(
    "ask",
    "Ask a colleague a question. The answer comes later, as mail of its own: end your turn, and go on with it then.",
    {
        "type": "object",
        "properties": {"to": _HANDLE, "question": _TEXT},
        "required": ["to", "question"],
        "additionalProperties": False,
    },
    is_read_only=False,
    is_open_world=True,
)
ANSWER = ToolInfo(
    "answer",
    "Answer the question in your mail (of type a2a_request), or one for which you had asked what your mail (of type "
    "a2a_message) answers: `upon` in its payload. A question has one answer.",
    {
        "type": "object",
        "properties": {
            "text": _TEXT,
            "channel": {"type": "string", "description": "which question: its channel; not needed for one alone"},
        },
        "required": ["text"],
        "additionalProperties": False,
    },
    is_read_only=False,
)
NOTE = ToolInfo(
    "note",
    "Put down something worth remembering about this work.",
    {"type": "object", "properties": {"text": _TEXT}, "required": ["text"], "additionalProperties": False},
    is_read_only=False,
)


class OwnTools:
    """The tools of one turn.

    Args:
        handle: the seat.
        turn_id: the run.
        mail: what the turn works.
        questions: those in it, which are told what becomes of them.
        channels: None leaves `ask` and `answer` out.
    """

    def __init__(
        self,
        *,
        handle: str,
        turn_id: str,
        mail: Sequence[Envelope],
        questions: Questions,
        sender: TurnMail,
        notes: Notes,
        channels: Channels | None,
    ) -> None:
        self._handle = handle
        self._turn_id = turn_id
        self._mail = mail
        self._sender = sender
        self._notes = notes
        self._channels = channels
        self._questions = questions

    def tools(self) -> Sequence[Tool]:
        """All that make sense in this turn: `answer` only where it was asked something."""
        own = [Tool(SEND_MAIL, _taking(_SendMail, self._send_mail)), Tool(NOTE, _taking(_Note, self._note))]
        if self._channels is not None:
            own.append(Tool(ASK, self._ask))
            if self._questions.asked:
                own.append(Tool(ANSWER, _taking(_Answer, self._answer)))
        return own

    async def _send_mail(self, wish: _SendMail) -> ToolAnswer:
        mail = OutgoingMail(wish.to, wish.body, wish.subject, self._mail[0].conversation)
        try:
            return ToolAnswer(f"sent to {wish.to}: {await self._sender.send(mail)}")
        except (UnknownSeat, MailRefused) as refused:
            return ToolAnswer(str(refused), is_error=True)

    async def _note(self, wish: _Note) -> ToolAnswer:
        if len(wish.text) > MAX_NOTE_CHARS:
            return ToolAnswer(f"a note has at most {MAX_NOTE_CHARS} characters", is_error=True)
        try:
            return ToolAnswer(await self._notes.keep(wish.text))
        except Unavailable as error:
            return ToolAnswer(f"the note is not kept: {error}", is_error=True)

    async def _ask(self, call: Call) -> ToolAnswer:
        wish = _read(_Ask, call.arguments)
        if isinstance(wish, ToolAnswer):
            raise ToolNotCalled(wish.text)
        problem = self._cannot_ask(wish)
        if problem is not None:
            raise ToolNotCalled(problem)
        channels = self._channels
        assert channels is not None
        upon = tuple(self._questions.unanswered)
        channel = Channel(self._handle, wish.to, wish.question, self._sender.depth, self._sender.trace_id, upon=upon)
        try:
            opened = await self._sender.insist(
                lambda admit: channels.open(call.key, channel, admit=admit), "the opening of a channel"
            )
        except ChannelClosed as closed:
            return ToolAnswer(str(closed), is_error=True)
        if opened.channel.state == "open":
            request = opened.channel.request(call.key, wish.question, self._sender.timestamp, self._turn_id)
            try:
                await self._sender.post(request)
            except (UnknownSeat, MailRefused) as refused:
                await self._sender.insist(
                    lambda admit: channels.withdraw(call.key, opened, admit=admit), "taking a channel back"
                )
                return ToolAnswer(str(refused), is_error=True)
        self._questions.passed_on(upon)
        return ToolAnswer(f"asked; the answer comes as mail of type a2a_message about the channel {call.key}")

    def _cannot_ask(self, wish: _Ask) -> str | None:
        if wish.to == self._handle:
            return "that is yourself"
        if len(wish.question) > MAX_ANSWER_CHARS:
            return f"a question has at most {MAX_ANSWER_CHARS} characters"
        if self._sender.depth > MAX_DELEGATION_DEPTH:
            return f"this work was passed on {MAX_DELEGATION_DEPTH} times, as often as it may be: nobody would answer"
        try:
            self._sender.check_recipient(wish.to)
        except UnknownSeat as unknown:
            return str(unknown)
        return None

    async def _answer(self, wish: _Answer) -> ToolAnswer:
        channels, questions = self._channels, self._questions.asked
        assert channels is not None
        if len(wish.text) > MAX_ANSWER_CHARS:
            return ToolAnswer(f"an answer has at most {MAX_ANSWER_CHARS} characters", is_error=True)
        if not wish.channel and len(questions) > 1:
            return ToolAnswer(f"say which question, by its channel: {', '.join(questions)}", is_error=True)
        channel_id = wish.channel or next(iter(questions))
        if channel_id not in questions:
            return ToolAnswer(f"no mail of this turn asks in {channel_id!r}", is_error=True)
        work = answering(self._handle, questions[channel_id])
        try:
            closed = await self._sender.insist(
                lambda admit: channels.answer(channel_id, by=self._handle, text=wish.text, work=work, admit=admit),
                "the answer of a channel",
            )
            if not closed.is_delivered:
                await self._sender.post(closed.message(channel_id, self._sender.timestamp, self._turn_id))
        except (ChannelClosed, UnknownSeat, MailRefused) as refused:
            return ToolAnswer(str(refused), is_error=True)
        self._questions.answered(channel_id)
        if not closed.is_delivered:
            await self._sender.insist(
                lambda admit: channels.delivered(channel_id, admit=admit), "the delivery of an answer"
            )
        if closed.digest != digest_of(wish.text):
            return ToolAnswer("an earlier run of this work has answered already; that answer counts", is_error=True)
        return ToolAnswer(f"answered {closed.asker}")


def _taking(kind: type[Any], act: Callable[[Any], Awaitable[ToolAnswer]]) -> Callable[[Call], Awaitable[ToolAnswer]]:
    async def call(made: Call) -> ToolAnswer:
        wish = _read(kind, made.arguments)
        return wish if isinstance(wish, ToolAnswer) else await act(wish)

    return call


def _read(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    """The arguments, or the answer that tells what is wrong with them."""
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        return ToolAnswer(f"wrong arguments: {error}", is_error=True)
