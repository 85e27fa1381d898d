"""What the API needs of a node."""

from typing import Protocol

from crewlet.mail.pauses import Wish
from crewlet.node.dutystatus import DutiesSnapshot, TickSnapshot
from crewlet.node.mailstatus import DroppedLetter, LetterDetail, Letters, ReplayedLetter, SeatMail
from crewlet.node.scheduledesk import FiresSnapshot, SchedulesSnapshot
from crewlet.node.status import FleetSnapshot, HealthSnapshot, MailOutcome, SeatPause, SentMail
from crewlet.node.troubles import TroublesSnapshot
from crewlet.node.turnstatus import BudgetSnapshot, SeatTail, TurnDetail
from crewlet.turns.budget import Caps


class SeatPausing(Protocol):
    """Pausing and resuming; `node.pausing.Pausing` has the verbs, with the errors named there."""

    async def pause(self, handle: str, wish: Wish, *, instead_of: str | None = None) -> SeatPause: ...

    async def resume(self, handle: str, *, by: str = "", expect: str | None = None) -> SeatPause: ...

    async def pause_unit(self, unit: str, wish: Wish) -> tuple[SeatPause, ...]: ...

    async def resume_unit(self, unit: str, *, by: str = "") -> tuple[SeatPause, ...]: ...


class NodeDuties(Protocol):
    """The company's duties; `node.duties.DutyDesk` has them, with the errors named there."""

    async def list(self) -> DutiesSnapshot: ...

    async def run(self, name: str) -> TickSnapshot: ...


class NodeSchedules(Protocol):
    """The schedules; `node.scheduledesk.ScheduleDesk` has them, with the errors named there."""

    async def list(self) -> SchedulesSnapshot: ...

    async def history(self, name: str, *, limit: int = 50) -> FiresSnapshot: ...


class NodeHistory(Protocol):
    """The node's own turns; `node.historydesk.HistoryDesk` has the verbs, with the errors named there."""

    async def tail(self, handle: str, *, after: int = 0, limit: int = 20) -> SeatTail: ...

    async def turn(self, turn_id: str) -> TurnDetail: ...


class NodeBudgets(Protocol):
    """The budgets; `node.budgetdesk.BudgetDesk` has the verbs, with the errors named there."""

    async def list(self) -> tuple[BudgetSnapshot, ...]: ...

    async def show(self, seat: str | None) -> BudgetSnapshot: ...

    async def set(self, seat: str | None, caps: Caps | None) -> BudgetSnapshot: ...

    async def reset(self, seat: str | None) -> BudgetSnapshot: ...


class NodeLetters(Protocol):
    """The dead letters; `node.letterdesk.LetterDesk` has them, with the errors named there."""

    async def list(self, seat: str | None = None, *, after: str | None = None, limit: int = 50) -> Letters: ...

    async def show(self, letter_id: str) -> LetterDetail: ...

    async def replay(self, letter_id: str, *, again: bool = False) -> ReplayedLetter: ...

    async def drop(self, letter_id: str) -> DroppedLetter: ...


class NodeCommands(Protocol):
    """The verbs; `node.commands.Commands` has them, with the errors named there."""

    @property
    def duties(self) -> NodeDuties: ...

    @property
    def pausing(self) -> SeatPausing: ...

    async def send_mail(
        self,
        handle: str,
        body: str,
        *,
        subject: str = "",
        message_id: str | None = None,
        source: str = "person",
        conversation: str = "",
        chat_message: str = "",
    ) -> SentMail: ...

    async def mail_outcome(self, handle: str, message_id: str) -> MailOutcome: ...

    async def seat_mail(self, handle: str) -> SeatMail: ...

    @property
    def letters(self) -> NodeLetters: ...

    @property
    def history(self) -> NodeHistory: ...

    @property
    def budgets(self) -> NodeBudgets: ...

    @property
    def schedules(self) -> NodeSchedules: ...


class WebNode(Protocol):
    """A running node."""

    @property
    def commands(self) -> NodeCommands: ...

    def health(self) -> HealthSnapshot:
        """The node's own facts, from memory: never blocks, never fails."""
        ...

    async def troubles(self) -> TroublesSnapshot:
        """What is the matter with seats, as the nodes that hold them say. Never fails."""
        ...

    async def fleet(self) -> FleetSnapshot:
        """The fleet, from the leases.

        Raises:
            Unavailable: they cannot be read.
        """
        ...
