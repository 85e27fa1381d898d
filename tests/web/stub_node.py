"""A node that answers from what a test put into it, served over real HTTP in a thread of its own."""

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from crewlet.adapters.local.cells import LocalBucket, LocalCells
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import Company, Seat
from crewlet.duties.frame import UnknownDuty
from crewlet.mail.outbox import UnknownSeat
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses
from crewlet.node.budgetdesk import BudgetDesk
from crewlet.node.dutystatus import DutiesSnapshot, DutySnapshot, TickSnapshot
from crewlet.node.historydesk import UnknownTurn
from crewlet.node.letterdesk import UnknownLetter
from crewlet.node.mailstatus import (
    DroppedLetter,
    Letter,
    LetterDelivery,
    LetterDetail,
    Letters,
    ReplayedLetter,
    SeatMail,
)
from crewlet.node.pausing import Pausing
from crewlet.node.scheduledesk import FireSnapshot, FiresSnapshot, ScheduleSnapshot, SchedulesSnapshot, UnknownSchedule
from crewlet.node.settings import ApiSettings
from crewlet.node.status import (
    FleetSnapshot,
    HealthSnapshot,
    MailOutcome,
    NodeSnapshot,
    SeatSnapshot,
    SentMail,
    Unplaceable,
)
from crewlet.node.troubles import TroublesSnapshot
from crewlet.node.turnstatus import SeatTail, TurnDetail, TurnSnapshot
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import CallLine, DispatchLine, RoundLine
from crewlet.ports.mail import Backlog, Mail
from crewlet.testing.faults import FaultyCells
from crewlet.turns.budget import Caps
from crewlet.turns.budgets import BUDGETS_BUCKET, Budgets
from crewlet.web.app import create_app
from crewlet.web.server import Server, serve

NO_TROUBLE = TroublesSnapshot(("n1",))
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEALTH = HealthSnapshot("ok", "n1", "n1:ab", "0.1.0", STARTED, "connected", 1, False, ("writer",), 45.0)
FLEET = FleetSnapshot(
    company="Desk",
    this_node="n1",
    nodes=(NodeSnapshot("n1", ("ingress", "seats"), {"zone": "eu"}, "n1:ab", 4, 1, 41.5),),
    seats=(
        SeatSnapshot("writer", "Writes", "command", "anywhere", "n1", "n1:ab", 7, STARTED, 41.5),
        SeatSnapshot("far", "", "script", "zone=us"),
    ),
    unplaceable=(Unplaceable("far", "zone=us"),),
    unmanned_roles=("workers",),
)


COMPANY = Company(
    "Desk", (Seat("writer", unit="desk"), Seat("far", unit="far/off")), units={"desk": None, "far/off": "desk"}
)


class StubBacklogs:
    """Three messages in each inbox; nobody answers when there is a problem."""

    def __init__(self) -> None:
        self.problem: Exception | None = None

    async def waiting(self, subscription: object) -> Backlog:
        if self.problem is not None:
            raise self.problem
        return Backlog(2, 1, 1)


def real_pausing(backlogs: StubBacklogs) -> tuple[Pausing, FaultyCells]:
    """The real verbs, over a bucket in this process."""
    cells = FaultyCells(LocalBucket(PAUSES_BUCKET, LocalCells(SystemClock()), None))
    return Pausing(Pauses(cells), cast("Mail", backlogs), lambda: COMPANY, SystemEntropy()), cells


@dataclass(slots=True)
class StubDuties:
    """One duty, whose next tick ends as a test says; raises `problem` when there is one."""

    next_tick: TickSnapshot = field(default_factory=lambda: TickSnapshot("done", "1 mailbox retired", STARTED))
    problem: Exception | None = None

    async def list(self) -> DutiesSnapshot:
        if self.problem is not None:
            raise self.problem
        duty = DutySnapshot("maintenance", "cleans up", 900.0, "n1", "n1:ab", STARTED, 1200.5, self.next_tick)
        return DutiesSnapshot("n1", True, (duty, DutySnapshot("scheduler", "fires", 30.0)))

    async def run(self, name: str) -> TickSnapshot:
        if self.problem is not None:
            raise self.problem
        if name != "maintenance":
            raise UnknownDuty(f"there is no duty {name!r}; the duties are maintenance")
        return self.next_tick


@dataclass(slots=True)
class StubSchedules:
    """One schedule that has fired, and one that is new."""

    async def list(self) -> SchedulesSnapshot:
        fired = ScheduleSnapshot(
            "morning", "writer", "0 8 * * * (UTC)", STARTED, STARTED, "fired", "caught up 90 s late"
        )
        poll = ScheduleSnapshot(
            "poll",
            "far",
            "every 15m",
            STARTED,
            skipped_catchup=4,
            skipped_from=STARTED,
            skipped_before=STARTED,
            skipped_reason="late",
        )
        return SchedulesSnapshot((fired, poll))

    async def history(self, name: str, *, limit: int = 50) -> FiresSnapshot:
        if name != "morning":
            raise UnknownSchedule(f"there is no schedule {name!r}; there are morning, poll")
        fire = FireSnapshot(STARTED, "fired", "caught up 90 s late", "n1:1", 1000, STARTED, "a later one was due")
        return FiresSnapshot(name, (fire,)[:limit])


LETTER = Letter(
    id="17-0a1b2c3d",
    seat="writer",
    topic="crewlet.agent.writer.inbox",
    group="agent-writer",
    mail="order-1",
    source="person",
    subject="An order",
    deliveries=25,
    reason="the model\x1b[2J refused",
    published_at=STARTED,
    buried_at=STARTED,
)


@dataclass(slots=True)
class StubLetters:
    """Dead letters in a list; raises `problem` when there is one."""

    kept: list[Letter] = field(default_factory=lambda: [LETTER])
    asked: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    problem: Exception | None = None

    async def list(self, seat: str | None = None, *, after: str | None = None, limit: int = 50) -> Letters:
        self._note("list", seat, after, limit)
        found = [each for each in self.kept if seat in (None, each.seat)]
        return Letters(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    async def show(self, letter_id: str) -> LetterDetail:
        self._note("show", letter_id)
        history = (LetterDelivery(2, "n1:ab", STARTED), LetterDelivery(25, "n2:cd", STARTED, "the model refused"))
        return LetterDetail(self._found(letter_id), history, "external_notification", "", "Please.\x07\nNow.")

    async def replay(self, letter_id: str, *, again: bool = False) -> ReplayedLetter:
        self._note("replay", letter_id, again)
        letter = self._found(letter_id)
        return ReplayedLetter(letter.id, letter.seat, letter.mail, STARTED, is_repeat=letter.replay is not None)

    async def drop(self, letter_id: str) -> DroppedLetter:
        self._note("drop", letter_id)
        letter = self._found(letter_id)
        self.kept.remove(letter)
        return DroppedLetter(letter.id, letter.seat, letter.mail)

    def _note(self, *what: Any) -> None:
        self.asked.append(what)
        if self.problem is not None:
            raise self.problem

    def _found(self, letter_id: str) -> Letter:
        found = next((each for each in self.kept if each.id == letter_id), None)
        if found is None:
            raise UnknownLetter(letter_id)
        return found


TURN = TurnSnapshot(
    sequence=3,
    turn_id="0a1b2c3d-turn",
    seat="writer",
    state="running",
    epoch=7,
    runner="llm",
    work_key="w1",
    triggers=("order-1",),
    began_at=STARTED,
    round=2,
    tool="files_write",
    progress="half\x1b[2J way",
    progressed_at=STARTED,
    quiet_s=41.5,
)


@dataclass(slots=True)
class StubHistory:
    """One running turn; `tails` are answered first, one a request."""

    tails: list[SeatTail] = field(default_factory=list[SeatTail])
    asked: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    problem: Exception | None = None

    async def tail(self, handle: str, *, after: int = 0, limit: int = 20) -> SeatTail:
        self.asked.append((handle, after, limit))
        if self.problem is not None:
            raise self.problem
        if handle == "nobody":
            raise UnknownSeat(handle, COMPANY)
        if len(self.tails) > 1:
            return self.tails.pop(0)
        if self.tails:
            return self.tails[0]
        lost = DispatchLine("writer", ("order-0",), "defer", 'seat "writer" is not owned here', STARTED)
        return SeatTail(handle, "n1", "n1", True, (TURN,), (lost,))

    async def turn(self, turn_id: str) -> TurnDetail:
        if not TURN.turn_id.startswith(turn_id):
            raise UnknownTurn(f"this node (n1) remembers no turn {turn_id!r}")
        rounds = (RoundLine(1, STARTED, STARTED, "m", 10, 5), RoundLine(2, STARTED, None, "", 0, 0))
        call = CallLine(1, 2, "files_write", "files", True, "k", "{}", STARTED, None, False, "")
        return TurnDetail(TURN, rounds, (call,))


def real_budgets() -> BudgetDesk:
    """The real verbs, over a bucket in this process."""
    cells = LocalBucket(BUDGETS_BUCKET, LocalCells(SystemClock()), None)
    budgets = Budgets(cells, lambda spender: Caps(day=100) if spender == "writer" else Caps(), lambda: UTC)
    return BudgetDesk(budgets, lambda: COMPANY)


@dataclass(slots=True)
class StubCommands:
    """Keeps what was sent; raises `problem` when there is one."""

    backlogs: StubBacklogs = field(default_factory=StubBacklogs)
    pausing: Pausing = field(init=False)
    pauses: FaultyCells = field(init=False)
    sent: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    outcomes: dict[str, MailOutcome] = field(default_factory=dict[str, MailOutcome])
    inboxes: dict[str, SeatMail] = field(default_factory=dict[str, SeatMail])
    letters: StubLetters = field(default_factory=StubLetters)
    problem: Exception | None = None
    duties: StubDuties = field(default_factory=StubDuties)
    schedules: StubSchedules = field(default_factory=StubSchedules)
    history: StubHistory = field(default_factory=StubHistory)
    budgets: BudgetDesk = field(default_factory=real_budgets)

    def __post_init__(self) -> None:
        self.pausing, self.pauses = real_pausing(self.backlogs)

    async def send_mail(self, handle: str, body: str, *, message_id: str | None = None, **rest: str) -> SentMail:
        self._check(handle)
        mail = {"handle": handle, "body": body, "id": message_id or "made-here", **rest}
        is_duplicate = any(each["id"] == mail["id"] for each in self.sent)
        if letter := next((each.id for each in self.letters.kept if each.mail == message_id), None):
            return SentMail(mail["id"], True, letter)
        self.sent.append(mail)
        return SentMail(mail["id"], is_duplicate)

    async def seat_mail(self, handle: str) -> SeatMail:
        self._check(handle)
        return self.inboxes.get(handle, SeatMail(handle, 0, 0, node="n1"))

    async def mail_outcome(self, handle: str, message_id: str) -> MailOutcome:
        self._check(handle)
        return self.outcomes.get(message_id, MailOutcome(message_id, handle, "open"))

    def _check(self, handle: str) -> None:
        if self.problem is not None:
            raise self.problem
        if handle not in ("writer", "far"):
            raise UnknownSeat(handle, COMPANY)


@dataclass(slots=True)
class StubNode:
    """Answers from its fields."""

    commands: StubCommands = field(default_factory=StubCommands)
    snapshot: HealthSnapshot = HEALTH
    fleet_snapshot: FleetSnapshot = FLEET
    fleet_problem: Exception | None = None
    told: TroublesSnapshot = NO_TROUBLE

    async def troubles(self) -> TroublesSnapshot:
        return self.told

    def health(self) -> HealthSnapshot:
        return self.snapshot

    async def fleet(self) -> FleetSnapshot:
        if self.fleet_problem is not None:
            raise self.fleet_problem
        try:
            pauses = await self.commands.pausing.in_force()
        except Unavailable:
            return replace(self.fleet_snapshot, pauses_known=False)
        seats = tuple(replace(seat, pause=pauses.get(seat.handle)) for seat in self.fleet_snapshot.seats)
        return replace(self.fleet_snapshot, seats=seats)

    def reset(self) -> None:
        fresh = StubNode()
        self.snapshot, self.fleet_snapshot, self.fleet_problem = fresh.snapshot, fresh.fleet_snapshot, None
        self.told = NO_TROUBLE
        self.commands.duties, self.commands.history = StubDuties(), StubHistory()
        self.commands.budgets = real_budgets()
        self.commands.inboxes, self.commands.letters = {}, StubLetters()
        self.commands.sent, self.commands.outcomes, self.commands.problem = [], {}, None
        self.commands.backlogs.problem = None
        self.commands.pausing, self.commands.pauses = real_pausing(self.commands.backlogs)

    def change(self, **fields: Any) -> None:
        self.snapshot = replace(self.snapshot, **fields)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Served:
    """The stub behind its real listener."""

    node: StubNode
    server: Server

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, value: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("POST", path, json.dumps(value), {"Content-Type": "application/json", **(headers or {})})


@contextlib.contextmanager
def served(node: StubNode | None = None, api: ApiSettings | None = None) -> Generator[Served]:
    """Serve a stub on a free loopback port."""
    node = node or StubNode()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        started = asyncio.run_coroutine_threadsafe(serve(create_app(node, api), "127.0.0.1", 0), loop)
        server = started.result(60)
        yield Served(node, server)
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
