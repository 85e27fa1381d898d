"""One pass: compare what this node holds with its shares, give back what is too much, claim what is missing."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from crewlet.company.model import Seat
from crewlet.kit.beats import Beat
from crewlet.ports.errors import Unavailable
from crewlet.seats import allotment
from crewlet.seats.claiming import Claimer
from crewlet.seats.context import HostContext
from crewlet.seats.freed import FreedSeats
from crewlet.seats.handoff import Handoff
from crewlet.seats.lease import NODE, SEAT, Lease, seat_resource
from crewlet.seats.news import Freed, rows_after
from crewlet.seats.noderow import NodeRow, row_from_lease
from crewlet.seats.pace import EarlyClaims
from crewlet.seats.placement import Plan, plan
from crewlet.seats.presence import Presence
from crewlet.seats.tenure import Phase

_log = structlog.get_logger()

_TELL_EVERY_S = 300.0
_CLAIMED_UNSEEN = 8
"""So few seats are claimed without looking first who holds them."""


class SweepRecord(msgspec.Struct, frozen=True):
    """What one pass found and did. A later loss is a new record, never a change of this one.

    Attributes:
        at: when it began, a reading of `Clock.elapsed`.
        nodes: live nodes as far as known; None before any roster was read.
        capacity: the sum of this node's shares; `held` the seats it holds at the end of the pass.
        claimed: seats established in this pass.
        lost: seats gone from here since the pass began, with the reason.
        unplaceable: seats that no live node may run.
        is_fleet_full: the advertised counts cover every seat, so that none was tried.
        blocked_by_protocol: the protocol floor that refused a claim, or None.
        withheld: why no claim was made, or "": `behind`, `behind_unknown` (the check of it broke), `unserviceable`,
            `draining`, `shed`, `seats_unreadable`, `id_taken` (another process has the presence of this node's id, and
            the fleet counts one of the two).
    """

    at: float
    nodes: int | None = None
    capacity: int = 0
    held: int = 0
    claimed: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    unplaceable: tuple[str, ...] = ()
    is_fleet_full: bool = False
    blocked_by_protocol: int | None = None
    withheld: str = ""


class Sweep:
    """The passes of one host.

    Args:
        seats: the company's seats in force; may raise, and then nothing is concluded.
        may_claim: False while this node's copy of the company's records is behind. One that raises withholds too: a
            copy that is not known to be level is none.
        can_route: False while this node cannot serve its seats' calls at all. One that raises changes nothing.
        on_roster: told of the live nodes' presences when they were read.
        beat: where a pass says that it gets on. It is not judged between passes, nor while seats come and go.
    """

    def __init__(
        self,
        context: HostContext,
        handoff: Handoff,
        presence: Presence,
        *,
        seats: Callable[[], Sequence[Seat]],
        may_claim: Callable[[], bool],
        can_route: Callable[[], bool],
        on_roster: Callable[[Sequence[Lease]], None],
        beat: Beat,
    ) -> None:
        self._context = context
        self._handoff = handoff
        self._presence = presence
        self._seats = seats
        self._may_claim = may_claim
        self._can_route = can_route
        self._on_roster = on_roster
        self._beat = beat
        self._rows: Sequence[NodeRow] | None = None
        self._plan: Plan | None = None
        self._told_unplaceable: tuple[str, ...] = ()
        self._told_floor: int | None = None
        self._told_floor_at = 0.0
        self._told: tuple[object, ...] = ()
        self._claimer = Claimer(context, handoff, lambda: self._plan)
        self._early = EarlyClaims(context.clock, context.config.sweep_interval_s)
        self._freed = FreedSeats(context, self._claimer, presence, self._early)
        self.last: SweepRecord | None = None

    @property
    def live_nodes(self) -> int | None:
        """How many nodes the last roster that could be read had, this one included; None before the first."""
        return self._plan.nodes if self._plan is not None and self._plan.is_roster_known else None

    def me(self) -> NodeRow:
        """This node as it is now."""
        context, config = self._context, self._context.config
        running, stuck = context.tenures.running(), context.tenures.stuck()
        count = len({*running, *stuck}) if self._plan is None else allotment.advertised(self._plan, running, stuck)
        return NodeRow(
            node_id=config.node_id,
            roles=config.roles,
            labels=dict(config.labels),
            seats_held=count,
            seats_withdrawn=not context.is_routable or context.shed_reason is not None,
        )

    def hear_freed(self, freed: Freed) -> None:
        """A peer gave seats back: try those there is room for, although the counts may still say full."""
        if self._rows is None:
            return
        self._rows = rows_after(self._rows, freed)
        if self._freed.note(freed.seats):
            self._context.tasks.start(self._claim_freed(), "freed seats")

    async def _claim_freed(self) -> None:
        heard = await self._freed.collect(len(self._rows or ()))
        withheld = self._withheld()
        _log.debug("seats_freed_heard", seats=len(heard), withheld=withheld)
        if withheld:
            return
        try:
            division = self._plan = plan(self._rows, tuple(self._seats()), self.me(), self._plan)
        except Exception:  # noqa: BLE001 -- the next pass reports an unreadable list
            return
        established = await self._freed.claim(heard, division)
        if established and self.last is not None:
            self._note(claimed=(*self.last.claimed, *established))

    def note_loss(self, handle: str, reason: str) -> None:
        """A seat is gone from here, in or after the pass."""
        if self.last is not None:
            self.last = msgspec.structs.replace(self.last, lost=(*self.last.lost, (handle, reason)))

    async def sweep(self, *, is_early: bool = False) -> SweepRecord:
        """Run one pass. Never raises for the store, the seat list or a hook.

        Args:
            is_early: it comes before its tick, so that what it wins is charged to the early claims.
        """
        try:
            return await self._sweep(is_early=is_early)
        finally:
            self._beat.stop()

    async def _sweep(self, *, is_early: bool) -> SweepRecord:
        self._beat.stamp()
        self.last = SweepRecord(at=self._context.clock.elapsed())
        if self._context.is_draining:
            return self._end(withheld="draining")
        if self._context.shed_reason is not None:
            return self._end(withheld="shed")  # every seat is on its way out already, and in no other manner
        try:
            seats = tuple(self._seats())
        except Exception:  # noqa: BLE001 -- an unreadable list is unknown, and unknown releases nothing
            _log.exception("seat_list_unreadable")
            return self._end(withheld="seats_unreadable")
        self._context.forget_seats({seat.handle for seat in seats})
        await self._look()
        self._beat.stamp()
        is_roster_fresh = await self._read_roster()
        self._beat.stamp()
        division = self._plan = plan(self._rows, seats, self.me(), self._plan)
        self._note(
            nodes=division.nodes if division.is_roster_known else None,
            capacity=division.capacity,
            unplaceable=tuple(seat.handle for seat in division.unplaceable),
        )
        self._tell_unplaceable(division)
        await self._give_back(division)
        self._beat.stamp()
        await self._claim(division, is_roster_fresh=is_roster_fresh, is_early=is_early)
        return self._end()

    async def _look(self) -> None:
        """See whether this node can serve seats at all; its peers hear of a change before any seat moves."""
        is_routable = _ask(self._can_route, "can_route")
        if is_routable is not None and is_routable != self._context.is_routable:
            self._context.is_routable = is_routable
            await self._advertise()

    async def _read_roster(self) -> bool:
        try:
            presences = await self._context.leases.list_live(NODE)
        except Unavailable as error:
            _log.warning("seat_roster_unreadable", error=str(error), known=self._rows is not None)
            return False
        self._rows = [row_from_lease(lease) for lease in presences]
        try:
            self._on_roster(presences)
        except Exception:  # noqa: BLE001 -- the node's code; the pass goes on
            _log.exception("seat_roster_notice_broke")
        return True

    async def _give_back(self, division: Plan) -> None:
        context, limits = self._context, self._context.config
        staying = context.tenures.staying()
        reasons: dict[str, str] = dict(allotment.unwanted(division, staying, is_withdrawn=not context.is_routable))
        if any(reason == "unserviceable" for reason in reasons.values()):
            _log.warning("seats_shed_unserviceable", seats=sorted(reasons))
        wanted = [handle for handle in staying if handle not in reasons]
        excess = allotment.shed_order(division, wanted, context.tenures.stuck(), context.is_busy)
        reasons.update((handle, "rebalance") for handle in excess[: limits.releases_per_sweep])
        releases: list[asyncio.Task[bool]] = []
        for handle, reason in reasons.items():
            tenure = context.tenures.get(handle)
            if tenure is None or tenure.phase is not Phase.HELD:
                continue  # one that is still being acquired is judged again once it is here
            # A busy seat leaves when its handler ends; the pass goes on without it.
            is_idle = not context.is_busy(handle)
            release = self._handoff.release(tenure, reason, is_voluntary=True, wait_s=limits.handoff_wait_s)
            task = context.tasks.start(release, f"release of {handle}")
            if is_idle:
                releases.append(task)
        await self._patiently(releases, context.config.sweep_interval_s)

    async def _claim(self, division: Plan, *, is_roster_fresh: bool, is_early: bool) -> None:
        context = self._context
        withheld = self._withheld()
        if withheld:
            if withheld in ("behind", "behind_unknown"):
                _log.debug("seat_claims_withheld", reason=withheld)
            self._note(withheld=withheld)
            return
        if not self._claimer.candidates(division):
            return
        running, stuck = context.tenures.running(), context.tenures.stuck()
        if is_roster_fresh and allotment.is_fleet_full(division, running, stuck):
            self._note(is_fleet_full=True)
            return
        try:
            hints = await context.leases.hints(context.config.node_id, SEAT)
        except Unavailable:
            hints = set[str]()
        self._beat.stamp()
        hinted = [seat.handle for seat in division.eligible if seat_resource(seat.handle) in hints]
        won = await self._claimer.claim(
            await self._not_held(self._claimer.candidates(division, hinted)),
            context.config.claims_per_sweep,
            early=self._early if is_early else None,
            on_step=self._ask_patiently,
        )
        await self._patiently([task for _, task in won.takes], context.ttl_s)
        self._note(claimed=won.established, blocked_by_protocol=won.floor)
        if won.takes:
            await self._advertise()

    async def _not_held(self, candidates: Sequence[str]) -> Sequence[str]:
        """Of many candidates those that no peer holds: one listing, in place of a claim on each that loses.

        Unreadable, it concludes nothing.
        """
        if len(candidates) <= _CLAIMED_UNSEEN:
            return candidates
        try:
            leases = await self._context.leases.list_live(SEAT)
        except Unavailable:
            return candidates
        held = {lease.resource for lease in leases if lease.owner != self._context.config.owner}
        return [handle for handle in candidates if seat_resource(handle) not in held]

    async def _advertise(self) -> None:
        self._ask_patiently()
        await self._presence.advertise()
        self._beat.stamp()

    def _ask_patiently(self) -> None:
        """A claim begins: several questions to the store, one after the other and each with a bound of its own."""
        self._beat.grant(self._context.ttl_s)

    async def _patiently(self, moving: Sequence["asyncio.Task[bool]"], at_most_s: float) -> None:
        self._beat.stop()
        await self._claimer.patiently(moving, at_most_s)
        self._beat.stamp()

    def _withheld(self) -> str:
        context = self._context
        if context.is_draining:
            return "draining"
        if context.shed_reason is not None:
            return "shed"
        if not context.is_routable:
            return "unserviceable"
        if self._presence.rival is not None:
            return "id_taken"
        match _ask(self._may_claim, "may_claim"):
            case True:
                return ""
            case False:
                return "behind"
            case None:
                return "behind_unknown"

    def _tell_blocked(self, floor: int | None) -> None:
        now = self._context.clock.elapsed()
        if floor is not None and (floor != self._told_floor or now - self._told_floor_at >= _TELL_EVERY_S):
            _log.warning("seat_claims_blocked_by_older_protocol", floor=floor)
            self._told_floor_at = now
        self._told_floor = floor

    def _tell_unplaceable(self, division: Plan) -> None:
        handles = tuple(seat.handle for seat in division.unplaceable)
        if handles and handles != self._told_unplaceable:
            placements = {seat.handle: str(seat.placement) for seat in division.unplaceable}
            _log.warning("seats_unplaceable", seats=placements)
        self._told_unplaceable = handles

    def _note(self, **changes: object) -> None:
        if self.last is not None:
            self.last = msgspec.structs.replace(self.last, **changes)  # type: ignore[arg-type]

    def _end(self, *, withheld: str = "") -> SweepRecord:
        assert self.last is not None
        held = len(self._context.tenures.running()) + len(self._context.tenures.stuck())
        self.last = msgspec.structs.replace(self.last, held=held, withheld=withheld or self.last.withheld)
        record = self.last
        self._tell_blocked(record.blocked_by_protocol)
        # A pass like the one before it comes every few seconds for ever.
        told = (record.held, record.capacity, record.nodes, record.is_fleet_full, record.withheld)
        log = _log.info if record.claimed or record.lost or told != self._told else _log.debug
        self._told = told
        log(
            "seat_sweep",
            held=record.held,
            capacity=record.capacity,
            nodes=record.nodes,
            claimed=list(record.claimed),
            lost=[handle for handle, _ in record.lost],
            fleet_full=record.is_fleet_full,
            withheld=record.withheld,
        )
        return record


def _ask(question: Callable[[], bool], name: str) -> bool | None:
    """What a check of the node says; None where it raises: it is not known."""
    try:
        return question()
    except Exception:  # noqa: BLE001 -- the node's code; each asker has its own safe direction
        _log.exception("seat_check_broke", check=name)
        return None
