"""A turn of an `llm` seat: its mail, tools, and what it reports go to lists; the model is what a test says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dispatch_desk import Desk, event

from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import LlmModel, LlmRunner, Seat
from crewlet.mail.envelope import Envelope
from crewlet.ports.clock import Clock
from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.seats.fence import SeatFence
from crewlet.turns.guards import GuardBreached
from crewlet.turns.runners.llm import LlmTurns
from crewlet.turns.turn import OutgoingMail, RoundUsage, Turn, TurnResult

LOOK = ToolInfo(
    "look",
    "Look at a page.",
    {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]},
)
SUBMITTED = {"outcome": "delivered", "summary": "All done.", "evidence": ["page 7"]}


def _turn_to(arguments: Mapping[str, Any]) -> ToolAnswer:
    return ToolAnswer(f"page {arguments.get('page')}")


class Tools:
    """Tools that answer `act`, and keep what was called."""

    def __init__(self, fence: SeatFence, act: Callable[[Mapping[str, Any]], ToolAnswer] | None = None) -> None:
        self._fence = fence
        self.act = act or _turn_to
        self.infos: Sequence[ToolInfo] = [LOOK]
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.running = self.most_at_once = 0

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        self._fence.check()
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        self.called.append((name, dict(arguments)))
        return self.act(arguments)


class LlmDesk:
    """One turn. `run` works it over HTTP, on whatever the seat's models name."""

    def __init__(
        self, runner: LlmRunner, *, sources: Sequence[str] = ("person",), depth: int = 0, clock: Clock | None = None
    ) -> None:
        self.clock = clock or SystemClock()
        self.fence = Desk().new_fence(7)
        self.tools = Tools(self.fence)
        self.sent: list[OutgoingMail] = []
        self.progress: list[str] = []
        self.waits: list[str] = []
        self.usage: list[RoundUsage] = []
        self.rounds: list[int] = []
        self.variables: dict[str, str] = {}
        mail: list[Envelope] = [
            event(f"e{n}", source=source, conversation="c1", body="Look at page 7.", delegation_depth=depth)
            for n, source in enumerate(sources)
        ]
        self.turn = Turn(
            "t1",
            "w1",
            Seat("alice", title="Reader", runner=runner),
            mail,
            self.fence,
            self._send,
            self.progress.append,
            lambda _: None,
            tools=self.tools,
            begin_round=self._begin,
            usage=self._use,
            waiting=self.waits.append,
        )
        self.turns = LlmTurns(self.turn.seat, clock=self.clock, entropy=SystemEntropy(), variable=self.variables.get)

    async def run(self) -> TurnResult:
        return await self.turns.run(self.turn)

    async def _send(self, mail: OutgoingMail) -> str:
        self.sent.append(mail)
        return f"m{len(self.sent)}"

    async def _begin(self, number: int) -> None:
        self.rounds.append(number)

    async def _use(self, usage: RoundUsage) -> None:
        self.usage.append(usage)


def at(url: str, name: str = "scripted", key: str | None = None) -> LlmModel:
    return LlmModel(f"openai:{name}", url, key)


__all__ = ["LOOK", "SUBMITTED", "GuardBreached", "LlmDesk", "Tools", "at"]
