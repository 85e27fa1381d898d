"""One `python` seat with a real worker, for one tenure."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from process_kit import ENV, until

from crewlet.adapters.process import LocalPrograms
from crewlet.adapters.system.clock import SystemClock
from crewlet.company.model import Company, PythonRunner, Seat
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.seats.fence import SeatFence
from crewlet.turns.runners import PythonTurns
from crewlet.turns.turn import OutgoingMail, RoundUsage, Turn, TurnResult

SEATS = Path(__file__).parent / "seats"
DESK = Company("Desk")


class _Tools:
    infos = (ToolInfo("add", "adds", {"type": "object"}), ToolInfo("fail", "fails", {"type": "object"}))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        return ToolAnswer(str(sum(arguments.values())), is_error=name == "fail")


class SeatBench:
    """One python seat for one tenure."""

    def __init__(self, *, epoch: int = 7) -> None:
        self.clock = SystemClock()
        self.programs = LocalPrograms()
        self.fence = SeatFence(Term("seat:alice", "node-a:1", epoch), self.clock, math.inf)
        self.sent: list[OutgoingMail] = []
        self.shown: list[str] = []
        self.spent: list[RoundUsage] = []
        self.changes: list[tuple[bool, str | None]] = []
        self.turns: PythonTurns | None = None
        self._runs = itertools.count()

    async def start(
        self, target: str, *, path: Path = SEATS, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> PythonTurns:
        """Have its worker started, and wait until it is ready or says why not."""
        self.seat = Seat("alice", runner=PythonRunner(target, str(path), env or {}, timeout_s))
        turns = self.turns = PythonTurns(self.seat, self.programs, clock=self.clock, base_env=ENV)
        turns.start(self.fence, lambda: self.changes.append((turns.is_ready, turns.trouble)))
        await until(lambda: turns.is_ready or turns.trouble is not None)
        return turns

    async def run(self, body: str = "hi", *, mail_id: str = "e1") -> TurnResult:
        assert self.turns is not None
        return await self.turns.run(self.turn(body, mail_id))

    async def ready(self) -> None:
        assert self.turns is not None
        turns = self.turns
        await until(lambda: turns.is_ready)

    def turn(self, body: str, mail_id: str = "e1") -> Turn:
        mail = Envelope(
            id=mail_id,
            type="external_notification",
            timestamp="2030-01-01T00:00:00Z",
            source="seat:bob",
            to="alice",
            body=body,
            conversation="c1",
        )
        return Turn(
            f"t{next(self._runs)}",
            "w1",
            self.seat,
            [mail],
            self.fence,
            self._send,
            self.shown.append,
            _nothing_leaves,
            tools=_Tools(),
            usage=self._spend,
        )

    async def _send(self, mail: OutgoingMail) -> str:
        if mail.to == "nobody":
            raise UnknownSeat("nobody", DESK)
        self.sent.append(mail)
        return f"m{len(self.sent)}"

    async def _spend(self, usage: RoundUsage) -> None:
        self.spent.append(usage)


def _nothing_leaves(what: str) -> None:
    raise AssertionError(what)
