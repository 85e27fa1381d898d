"""Faults that a test plants: at which step of a seat's turn, and what happens there."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.turns.turn import Fence, OutgoingMail, Runner, StandingRunner, Tools, Turn, TurnResult

Step = Literal["round", "call", "send", "end"]
"""A model answers; a tool is about to be called; mail is about to be sent; the turn has its outcome, unsaid yet."""


@dataclass(slots=True, eq=False)
class Plan:
    """One fault, planted once.

    Attributes:
        step, number: the first time that a turn of the seat gets there; numbers count from 1 in each turn.
        strike: what happens. It may never return: then the turn's node is dead.
        text: for the seat's history.
    """

    seat: str
    step: Step
    number: int
    strike: "Callable[[Any], Awaitable[None]]"
    text: str
    is_over: bool = False


@dataclass(slots=True)
class Plans:
    """All that were planted."""

    planted: list[Plan] = field(default_factory=list[Plan])

    def add(self, plan: Plan) -> None:
        self.planted.append(plan)

    def missed(self) -> list[Plan]:
        """Those whose step has not come."""
        return [plan for plan in self.planted if not plan.is_over]

    async def reached(self, life: Any, seat: str, step: Step, number: int) -> None:
        """A turn has got there."""
        for plan in self.planted:
            if not plan.is_over and (plan.seat, plan.step, plan.number) == (seat, step, number):
                plan.is_over = True
                await plan.strike(life)


class PlannedTurns:
    """The real runner of a seat, each step of which passes the plans.

    Args:
        life: the life of the node that runs it, handed to what strikes.
        counts_rounds: rounds are reported by whoever runs; false where a scripted model tells of its own.
    """

    def __init__(self, inner: Runner, plans: Plans, life: Any, *, counts_rounds: bool) -> None:
        self._inner = inner
        self._plans = plans
        self._life = life
        self._counts_rounds = counts_rounds
        self.kind = inner.kind
        self.round = 0

    async def run(self, turn: Turn) -> TurnResult:
        """See the port."""
        seat, sends = turn.seat.handle, 0
        self.round = 0

        async def begin_round(number: int) -> None:
            await turn.begin_round(number)
            self.round = number
            if self._counts_rounds:
                await self._plans.reached(self._life, seat, "round", number)

        async def send(mail: OutgoingMail) -> str:
            nonlocal sends
            sends += 1
            await self._plans.reached(self._life, seat, "send", sends)
            return await turn.send(mail)

        async def call(number: int) -> None:
            await self._plans.reached(self._life, seat, "call", number)

        tools = _PlannedTools(turn.tools, call) if turn.tools is not None else None
        result = await self._inner.run(replace(turn, begin_round=begin_round, send=send, tools=tools))
        await self._plans.reached(self._life, seat, "end", 1)
        return result

    async def answering(self, seat: str) -> None:
        """A scripted model answers in the present round."""
        await self._plans.reached(self._life, seat, "round", self.round)


class PlannedStanding(PlannedTurns):
    """The same of a runner that keeps something for its tenure."""

    def __init__(self, inner: StandingRunner, plans: Plans, life: Any) -> None:
        super().__init__(inner, plans, life, counts_rounds=True)
        self._standing = inner

    @property
    def is_ready(self) -> bool:
        return self._standing.is_ready

    @property
    def trouble(self) -> str | None:
        return self._standing.trouble

    def start(self, fence: Fence, on_change: Callable[[], None]) -> None:
        """See the port."""
        self._standing.start(fence, on_change)

    async def end(self) -> None:
        """See the port."""
        await self._standing.end()


class _PlannedTools:
    def __init__(self, inner: Tools, reached: Callable[[int], Awaitable[None]]) -> None:
        self._inner = inner
        self._reached = reached
        self._calls = 0

    @property
    def infos(self) -> Sequence[ToolInfo]:
        return self._inner.infos

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        self._calls += 1
        await self._reached(self._calls)
        return await self._inner.call(name, arguments)
