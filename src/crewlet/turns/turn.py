"""The values of a turn, and what a runner is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from crewlet.company.model import Seat
from crewlet.mail.envelope import Envelope
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolAnswer, ToolInfo

OutcomeWord = Literal["delivered", "no_action", "blocked", "failed", "stopped"]
"""How a turn ended. `suspended` is reserved."""


class Fence(Protocol):
    """May the running turn still act? Built for one tenure; once closed it stays closed."""

    @property
    def term(self) -> Term: ...

    @property
    def good_until(self) -> float:
        """The reading of `Clock.elapsed` at which it closes by itself unless a renewal moves it. May be infinite."""
        ...

    def check(self) -> None:
        """Pass, or raise.

        Raises:
            Fenced: the tenure ended, or its deadline passed, whether or not anybody noticed yet.
        """
        ...

    def on_close(self, call: Callable[[str], None]) -> Callable[[], None]:
        """Have `call` told why, in the step in which it closes; now, if it is closed. Returns what ends that."""
        ...


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """What a turn asks to be sent."""

    to: str
    body: str
    subject: str = ""
    conversation: str = ""


class Tools(Protocol):
    """What an agent may call. `turns.toolbox.Toolbox` keeps its promises."""

    @property
    def infos(self) -> Sequence[ToolInfo]: ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer: ...


@dataclass(frozen=True, slots=True)
class RoundUsage:
    """What one answer of a model cost.

    Attributes:
        round: which, from 1.
        model: the one that answered, a fallback's name where it was that.
        input_tokens, output_tokens: as the provider counts them; 0 when it does not say.
    """

    round: int
    model: str
    input_tokens: int
    output_tokens: int


def _tell_nobody(message: str) -> None:
    del message


async def _begin_freely(number: int) -> None:
    del number


async def _count_nothing(usage: RoundUsage) -> None:
    del usage


def _none_left() -> Sequence[str]:
    return ()


class Turn(msgspec.Struct, frozen=True):
    """One run of a seat's agent on one partition of mail.

    Attributes:
        turn_id: names this run.
        work_key: names the unit of work across re-runs; "" when no trigger is ledgered.
        seat: who runs.
        mail: the events, oldest first; one or more.
        fence: passed before every outside step.
        send: sends mail for the turn and returns its id, the same at a re-run of the same work.
        progress: reports a line for people.
        reach: told of a call that leaves the system and cannot be told from a repeat, before it leaves. Mail is none.
        answered: told of a chat message that the turn's thread showed as waiting for the seat: somebody else's, after
            the seat's own last reply and before what woke the turn, and not cut off. A finished turn has answered it.
        tools: what the seat's agent may call; None when nobody made any.
        begin_round: awaited before each round of a model, with its number from 1. It may raise `Unavailable`, or
            whatever else ends the turn before the round.
        usage: awaited after each answer of a model. It may raise `Unavailable`: what cannot be counted ends the turn.
        waiting: told what the turn waits for outside, in one line for people; "" when it goes on.
        questions_left: the channels of the questions in its mail that it has neither answered nor asked a colleague
            upon, as of now.
    """

    turn_id: str
    work_key: str
    seat: Seat
    mail: Sequence[Envelope]
    fence: Fence
    send: Callable[[OutgoingMail], Awaitable[str]]
    progress: Callable[[str], None]
    reach: Callable[[str], None]
    answered: Callable[[str], None] = _tell_nobody
    tools: Tools | None = None
    begin_round: Callable[[int], Awaitable[None]] = _begin_freely
    usage: Callable[[RoundUsage], Awaitable[None]] = _count_nothing
    waiting: Callable[[str], None] = _tell_nobody
    questions_left: Callable[[], Sequence[str]] = _none_left


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What a runner says of its turn. `detail` is one line for people."""

    outcome: OutcomeWord
    detail: str = ""


class TurnBroke(Exception):
    """The turn could not be brought to an outcome.

    When its record proves an outside effect (`Turn.reach`) it is recorded and acked; without one its mail comes back.
    """


class AgentNotReady(Exception):
    """The turn could not begin: its agent cannot be started now. Its mail waits for it, and nothing was tried."""


class Runner(Protocol):
    """Runs turns of one kind of seat."""

    kind: str

    async def run(self, turn: Turn) -> TurnResult:
        """Bring one turn to an outcome.

        Raises:
            Fenced: the fence closed; everything the turn started has been *seen* to end.
            TurnBroke, AgentNotReady: see there.

        Cancellation: everything the turn started is ended, and seen to end, before the cancellation goes on. Any other
        exception is a panic: a defect that a re-run would meet again.
        """
        ...


@runtime_checkable
class StandingRunner(Runner, Protocol):
    """A runner that keeps something for as long as a tenure lasts. Made for one tenure, and started and ended once."""

    @property
    def is_ready(self) -> bool:
        """Whether a turn can run now. While it cannot, the seat's inbox is held."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why none can, in a sentence for people; None while all is well or well under way."""
        ...

    def start(self, fence: Fence, on_change: Callable[[], None]) -> None:
        """Begin; does not wait. `on_change` is told whenever `is_ready` or `trouble` may have changed."""
        ...

    async def end(self) -> None:
        """End all that it keeps, and return when it was seen to end. No turn runs.

        Raises:
            ProgramUnproven: something may be left; call again.
        """
        ...
