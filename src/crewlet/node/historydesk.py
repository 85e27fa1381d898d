"""What a node says of its own turns. It knows only those that ran here: another node's are that node's to tell."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from crewlet.company.model import Company
from crewlet.mail.outbox import UnknownSeat
from crewlet.node.status import FleetSnapshot
from crewlet.node.turnstatus import SeatTail, TurnDetail, TurnSnapshot
from crewlet.ports.clock import Clock
from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.ports.history import History, TurnLine

MAX_TAIL = 200


class UnknownTurn(CrewletError):
    """This node remembers no such turn, or several that begin like this."""


@dataclass(frozen=True, slots=True)
class HistoryDesk:
    """The verbs.

    Attributes:
        running: the ids of the turns that run here now, by handle.
        waiting: what they wait for outside, by handle.
    """

    history: History
    company: Callable[[], Company]
    fleet: Callable[[], Awaitable[FleetSnapshot]]
    running: Callable[[], Mapping[str, str]]
    waiting: Callable[[], Mapping[str, str]]
    node_id: str
    clock: Clock

    async def tail(self, handle: str, *, after: int = 0, limit: int = 20) -> SeatTail:
        """The newest turns of a seat.

        Args:
            after: only turns with a larger `sequence`, or that had not ended by then; 0 for all.
            limit: how many at most, 1 to 200.

        Raises:
            UnknownSeat: neither the company nor this node's history knows the seat.
            Unavailable: the history cannot be read.
        """
        company = self.company()
        lines = await self.history.turns(handle, after=after, limit=limit)
        dispatches = await self.history.dispatches(handle, limit=limit)
        if company.seat(handle) is None and not lines and not dispatches:
            raise UnknownSeat(handle, company)
        try:
            fleet = await self.fleet()
            node = next((seat.node for seat in fleet.seats if seat.handle == handle), None)
        except Unavailable:
            node = None  # what ran here can be told all the same
        turns = tuple(self._shown(line) for line in lines)
        return SeatTail(handle, self.node_id, node, node == self.node_id, turns, tuple(dispatches))

    async def turn(self, turn_id: str) -> TurnDetail:
        """One turn, by its id or the beginning of it.

        Raises:
            UnknownTurn: this node remembers none.
            Unavailable: the history cannot be read.
        """
        page = await self.history.turn(turn_id)
        if page is None:
            raise UnknownTurn(
                f"this node ({self.node_id}) remembers no turn {turn_id!r}; ask the node that ran it, with its --url"
            )
        return TurnDetail(self._shown(page.turn), page.rounds, page.calls)

    def _shown(self, line: TurnLine) -> TurnSnapshot:
        is_running = line.ended_at is None and self.running().get(line.seat) == line.turn_id
        quiet_s = max(0.0, (self.clock.now() - line.progressed_at).total_seconds())
        return TurnSnapshot(
            sequence=line.sequence,
            turn_id=line.turn_id,
            seat=line.seat,
            state="running" if is_running else "ended" if line.ended_at is not None else "cut_off",
            epoch=line.epoch,
            runner=line.runner,
            work_key=line.work_key,
            triggers=line.triggers,
            began_at=line.began_at,
            round=line.round,
            tool=line.tool,
            progress=line.progress,
            progressed_at=line.progressed_at,
            waiting=self.waiting().get(line.seat, "") if is_running else "",
            quiet_s=round(quiet_s, 3) if is_running else None,
            ended_at=line.ended_at,
            outcome=line.outcome,
            detail=line.detail,
        )
