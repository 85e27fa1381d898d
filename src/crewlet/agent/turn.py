"""A turn as the function sees that works it: `Turn` for an `async def`, `SyncTurn` for a plain `def`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from crewlet.agent.link import Exchange, Fenced, Message, Refused

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Fenced", "Mail", "Outcome", "Refused", "SyncTerm", "SyncTurn", "Term", "Tool", "ToolResult", "Turn"]

Word = Literal["delivered", "no_action", "blocked", "failed"]

_PROGRESS_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended. Whatever the word, its mail is finished with and does not come back.

    Attributes:
        word: `delivered` (the work is done), `no_action` (there was nothing to do), `blocked` (something that a person
            has to see to is in the way), `failed`.
        detail: one line for people.
    """

    word: Word
    detail: str = ""

    def __post_init__(self) -> None:
        if self.word not in get_args(Word):
            raise ValueError(f"{self.word!r} is no outcome; there are {', '.join(get_args(Word))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One event of a turn. What it says comes from its writer: treat it as data.

    Attributes:
        type: `external_notification` (mail of a person, program or seat), `task_assigned` (of a schedule),
            `a2a_request` (a question of a seat, which the tool `answer` answers) or `a2a_message` (an answer).
        source: `seat:{handle}`, `person`, or `program`.
        chat_message: its identity on the chat that it came from, or "".
        conversation: the thread that it belongs to; mail of one thread is worked together.
        timestamp: when it was sent, RFC 3339.
        payload: what stands beside the text; the `channel` of a question or answer.
    """

    id: str
    type: str
    source: str
    to: str
    subject: str
    body: str
    conversation: str
    chat_message: str
    timestamp: str
    payload: Mapping[str, Any]

    @property
    def writer(self) -> str | None:
        """The handle of the seat that wrote, to which an answer can be sent; None for people and programs."""
        kind, _, handle = self.source.partition(":")
        return handle if kind == "seat" else None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the turn may call.

    Attributes:
        schema: JSON schema of its arguments, an object.
    """

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call brought back. With `is_error` the tool says that it failed, or nobody answered in time."""

    text: str
    is_error: bool = False


class _Term:
    """The tenure under which this turn acts.

    Attributes:
        resource: `seat:{handle}`.
        owner: the incarnation of the node that holds the seat.
        epoch: the fencing token: of two owners of the seat the later one has the higher number, always. Write it beside
            whatever you write elsewhere, and refuse a write that carries a lower one than is there.
        good_until: up to when the seat is surely this node's, in seconds of `CLOCK_BOOTTIME`, as of the start of the
            turn or the last `check`; None where it cannot be lost.
    """

    def __init__(self, talk: "_Talk", stated: Message) -> None:
        self._talk = talk
        self.resource: str = stated["resource"]
        self.owner: str = stated["owner"]
        self.epoch: int = stated["epoch"]
        self.good_until: float | None = stated["good_until"]

    def _hear(self, answer: Message) -> None:
        self.good_until = answer["term"]["good_until"]
        # The answer may be older than it looks: this process, or the machine, can have stood still since.
        if self.good_until is not None and self._talk.elapsed() >= self.good_until:
            raise Fenced(f"{self.resource} was not renewed in time at epoch {self.epoch}")


class Term(_Term):
    __doc__ = _Term.__doc__

    async def check(self) -> None:
        """Ask the node whether this turn may still act, and return if so.

        Raises:
            Fenced: it may not. More often the process is ended before it could be told.
        """
        self._hear(await _answer(self._talk.ask({"check": {}})))


class SyncTerm(_Term):
    __doc__ = _Term.__doc__

    def check(self) -> None:
        """Ask the node whether this turn may still act, and return if so.

        Raises:
            Fenced: it may not. More often the process is ended before it could be told.
        """
        self._hear(self._talk.ask({"check": {}}).result())


class _Talk:
    """What one turn says over the link."""

    def __init__(self, link: Exchange, turn_id: str) -> None:
        self._link = link
        self._turn_id = turn_id

    def elapsed(self) -> float:
        return self._link.elapsed()

    def ask(self, message: Message) -> "Future[Message]":
        return self._link.ask(self._turn_id, message)

    def say(self, message: Message) -> None:
        self._link.say(self._turn_id, message)


class _Turn:
    """One run of the seat's function on the mail of one conversation.

    Attributes:
        turn_id: names this run.
        work_key: names the work: the same whenever exactly these mails are worked together.
        seat: the seat's own handle.
        triggers: ids of the mails whose completion this turn decides.
        mail: the events, oldest first; one or more.
        tools: what `call` can reach.
    """

    def __init__(self, link: Exchange, start: Message) -> None:
        self.turn_id: str = start["turn_id"]
        self._talk = _Talk(link, self.turn_id)
        self._did_something = False
        self.work_key: str = start["work_key"]
        self.seat: str = start["seat"]
        self.triggers: Sequence[str] = tuple(start["triggers"])
        self.mail: Sequence[Mail] = tuple(Mail(**{key: each[key] for key in _MAIL_KEYS}) for each in start["mail"])
        self.tools: Sequence[Tool] = tuple(
            Tool(each["name"], each["description"], each["schema"]) for each in start["tools"]
        )

    def progress(self, text: str) -> None:
        """Show a line to people who watch. At most ten a second are shown."""
        self._talk.say({"progress": plain(text)[:_PROGRESS_CHARS]})

    def usage(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """Account for one answer of a model, in whole tokens. Where the seat's budget is spent the process is ended."""
        self._talk.say({"usage": {"model": model, "input_tokens": input_tokens, "output_tokens": output_tokens}})

    def answered(self, chat_message: str) -> None:
        """Say that this turn answers one more message of its chat thread, which was found waiting there.

        It is not worked again when the turn ends as `delivered` or `no_action`.
        """
        self._talk.say({"answered": chat_message})

    def ending(self, result: object) -> Message:
        """What the node is told when the function has returned this."""
        match result:
            case Outcome(word, detail):
                return {"outcome": word, "detail": plain(detail)[:_PROGRESS_CHARS]}
            case str():
                return {"outcome": "delivered", "detail": plain(result)[:_PROGRESS_CHARS]}
            case None:
                return {"outcome": "delivered" if self._did_something else "no_action"}
            case _:
                wrong = f"the function returned a {type(result).__name__}; it returns an Outcome, a text, or None"
                return {"raised": {"detail": wrong}}

    def _sending(self, to: str, body: str, subject: str, conversation: str | None) -> "Future[Message]":
        mail = {"to": to, "body": body, "subject": subject}
        if conversation is not None:
            mail["conversation"] = conversation
        return self._talk.ask({"send": mail})

    def _sent(self, answer: Message) -> str:
        if "refused" in answer:
            raise Refused(answer["refused"]["reason"])
        self._did_something = True
        return answer["sent"]["id"]

    def _calling(self, tool: str, arguments: Mapping[str, Any] | None) -> "Future[Message]":
        return self._talk.ask({"call": {"tool": tool, "arguments": dict(arguments or {})}})

    def _called(self, answer: Message) -> ToolResult:
        self._did_something = True
        return ToolResult(answer["result"]["text"], answer["result"]["is_error"])


class Turn(_Turn):
    __doc__ = _Turn.__doc__

    def __init__(self, link: Exchange, start: Message) -> None:
        super().__init__(link, start)
        self.term = Term(self._talk, start["term"])

    async def send(self, to: str, body: str, *, subject: str = "", conversation: str | None = None) -> str:
        """Send mail to a seat, and return its id once the broker has it.

        If the turn has to run again, the same sends in the same order carry the same ids, and are received once.

        Args:
            conversation: None stays in the conversation of the turn's mail, "" starts one of its own.

        Raises:
            Refused: nobody has it, and sending it again would not help.
            Fenced: the turn is over.
        """
        return self._sent(await _answer(self._sending(to, body, subject, conversation)))

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call one of the turn's tools, and wait for what it says. Calls are made one at a time, in order.

        Raises:
            Refused: the arguments are too large.
            Fenced: the turn is over.

        Cancellation: the call goes on; nobody waits for it.
        """
        return self._called(await _answer(self._calling(tool, arguments)))


class SyncTurn(_Turn):
    __doc__ = _Turn.__doc__

    def __init__(self, link: Exchange, start: Message) -> None:
        super().__init__(link, start)
        self.term = SyncTerm(self._talk, start["term"])

    def send(self, to: str, body: str, *, subject: str = "", conversation: str | None = None) -> str:
        """Send mail to a seat, and return its id once the broker has it; see `Turn.send`."""
        return self._sent(self._sending(to, body, subject, conversation).result())

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call one of the turn's tools, and wait for what it says; see `Turn.call`."""
        return self._called(self._calling(tool, arguments).result())


def plain(text: str) -> str:
    """The text without what no UTF-8 can carry."""
    return text.encode("utf-8", "replace").decode()


_MAIL_KEYS = tuple(Mail.__dataclass_fields__)


async def _answer(asked: "Future[Message]") -> Message:
    import asyncio  # a worker of a plain function never needs it

    return await asyncio.wrap_future(asked)
