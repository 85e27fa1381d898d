"""One seat's dispatch with everything around it real but the broker and the runner: those are told what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import Company, Seat
from crewlet.kit import logcontext
from crewlet.mail.channels import Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.ledger import LEDGER_BUCKET, Completion, Ledger
from crewlet.mail.outbox import Outbox, decode
from crewlet.mail.screening import Posture
from crewlet.ports.cells import Cells, Unknown, WriteResult
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import Happening, NoHistory
from crewlet.ports.mail import Bury, Delivery, Mail, Outcome, Published, Settling
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolServer
from crewlet.seats.fence import SeatFence
from crewlet.testing.virtual import VirtualClock
from crewlet.turns.dispatch import SeatDispatch
from crewlet.turns.record import TurnNote
from crewlet.turns.slots import Slots
from crewlet.turns.spending import Spending
from crewlet.turns.turn import OutgoingMail, Turn, TurnResult

Script = Callable[[Turn], Awaitable[TurnResult]]


@dataclass
class FakeMail:
    """Takes what is published. `answers` are raised or returned first, one a publish."""

    published: list[Envelope] = field(default_factory=list[Envelope])
    answers: list[Exception | Published] = field(default_factory=list[Exception | Published])

    async def publish(
        self,
        topic: str,
        data: bytes,
        *,
        message_id: str,
        headers: object = None,
        admit: Callable[[], None] | None = None,
    ) -> Published:
        if admit is not None:
            admit()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.published.append(decode(data))
        return Published(len(self.published))


@dataclass
class FakeRunner:
    """Runs a coroutine function of the test as the turn, and keeps the turns it was given."""

    script: Script
    kind: str = "fake"
    turns: list[Turn] = field(default_factory=list[Turn])

    async def run(self, turn: Turn) -> TurnResult:
        self.turns.append(turn)
        return await self.script(turn)


class Remembering(NoHistory):
    """A history that keeps all in a list."""

    def __init__(
        self,
        on_keep: Callable[[Happening], None] | None = None,
        before_keep: Callable[[Happening], Awaitable[None]] | None = None,
    ) -> None:
        self.kept: list[Happening] = []
        self._on_keep = on_keep
        self._before_keep = before_keep

    def note(self, happening: Happening) -> None:
        self.kept.append(happening)

    async def keep(self, happening: Happening) -> None:
        if self._before_keep is not None:
            await self._before_keep(happening)
        self.kept.append(happening)
        if self._on_keep is not None:
            self._on_keep(happening)


class Desk:
    """`owned` is what may_start answers; `fence` the present tenure's, or None."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        slots: Slots | None = None,
        handle: str = "alice",
        servers: Sequence[ToolServer] = (),
        spending: Spending | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.handle = handle
        self.seat = Seat(handle)
        self.owned: int | None = 7
        self.fence: SeatFence | None = self.new_fence(7)
        self.deferrals: list[str] = []
        self.holds: list[str] = []
        self.posture: Posture = "current"
        self.notes: list[TurnNote] = []
        self.watcher: Callable[[TurnNote], None] = self.notes.append
        self.mail = FakeMail()
        self.runner = FakeRunner(script or done)
        self.slots = slots or Slots()
        self.history = Remembering()
        self.servers = servers
        self.spending = spending
        self.channels: Channels | None = None
        self.cells: Cells | None = None
        self.logs: list[dict[str, Any]] = []
        self.published: list[tuple[str, Mapping[str, Any]]] = []
        company = Company("acme", seats=(Seat(handle), Seat("bob"), Seat("carol")))
        self.outbox = Outbox(cast("Mail", self.mail), lambda: company, self.clock, "node-a")
        self.dispatch: SeatDispatch

    def new_fence(self, epoch: int, good_until: float = float("inf")) -> SeatFence:
        return SeatFence(Term(f"seat:{self.handle}", "node-a:1", epoch), self.clock, good_until)

    async def open(self, cells: Cells | None = None) -> "Desk":
        self.cells = cells or await LocalCells(self.clock).open(LEDGER_BUCKET)
        self.ledger = Ledger(self.cells)
        self.dispatch = SeatDispatch(
            self.seat,
            may_start=lambda _: self.owned,
            note_deferral=self.deferrals.append,
            fence=lambda _: self.fence,
            holds=lambda _: self.holds,
            posture=lambda: self.posture,
            ledger=self.ledger,
            outbox=self.outbox,
            runner=self.runner,
            slots=self.slots,
            clock=self.clock,
            entropy=SystemEntropy(),
            history=self.history,
            spending=self.spending,
            servers=lambda: self.servers,
            channels=self.channels,
            tell=lambda event_type, about: self.published.append((event_type, about)),
            on_turn=self._watch,
        )
        return self

    def _watch(self, note: TurnNote) -> None:
        self.watcher(note)

    async def handle_mail(self, *deliveries: Delivery) -> Outcome | Bury:
        context = dict(logcontext.names())
        with capture_logs(processors=[logcontext.merge]) as logs:
            try:
                return await self.answer(deliveries)
            finally:
                self.logs += cast("list[dict[str, Any]]", logs)
                assert logcontext.names() == context

    async def answer(self, deliveries: Sequence[Delivery]) -> Outcome | Bury:
        """What the dispatch answers in the end."""
        answer = await self.dispatch(deliveries)
        return await answer.outcome if isinstance(answer, Settling) else answer

    async def completion(self, trigger: str) -> Completion | None:
        return await self.ledger.completion(self.handle, trigger)

    def told(self, event_type: str) -> list[Mapping[str, Any]]:
        """What the published events of a type are about."""
        return [about for each, about in self.published if each == event_type]

    def events(self) -> list[str]:
        return [line["event"] for line in self.logs]

    @property
    def ran(self) -> list[list[str]]:
        """The ids of the events of each turn."""
        return [[event.id for event in turn.mail] for turn in self.runner.turns]


async def done(turn: Turn) -> TurnResult:
    return TurnResult("delivered")


async def forever(turn: Turn) -> TurnResult:
    await asyncio.Event().wait()
    raise AssertionError


async def reach_then_wait(turn: Turn) -> TurnResult:
    turn.reach("an outside call")
    await turn.send(OutgoingMail("bob", "hello"))
    return await forever(turn)


def event(id: str, *, type: str = "external_notification", source: str = "person", **more: Any) -> Envelope:
    return Envelope(id=id, type=type, timestamp="2030-01-01T00:00:00Z", source=source, to="alice", **more)


def delivery(content: Envelope | bytes, *, sequence: int = 1, id: str | None = None) -> Delivery:
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    name = id if id is not None else (content.id if isinstance(content, Envelope) else f"m{sequence}")
    return Delivery(name, data, sequence, 1, 24, datetime(2030, 1, 1, tzinfo=UTC))


def mails(*ids: str) -> list[Delivery]:
    return [delivery(event(id), sequence=index) for index, id in enumerate(ids, 1)]


class BrokenCells:
    """A ledger bucket that answers nothing."""

    async def has_none(self, keys: Sequence[str]) -> bool:
        return False

    async def read(self, key: str) -> None:
        raise Unavailable("nobody answered")

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        return Unknown("nobody answered")
