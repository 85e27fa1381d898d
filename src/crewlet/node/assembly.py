"""One node, put together from a bundle of ports.

The same assembly runs on a laptop, in a fleet, over twins and in a simulation: only the bundle differs.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from crewlet import __version__
from crewlet.company.model import Company, Seat
from crewlet.kit.beats import Beats
from crewlet.kit.latch import Latch
from crewlet.kit.refusal import ConfigRefused
from crewlet.kit.supervise import Tasks
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.mail.events import Events
from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses
from crewlet.mail.pausewatch import PauseWatch
from crewlet.mail.replays import REPLAYS_BUCKET, Replays
from crewlet.node.budgetdesk import BudgetDesk
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.node.commands import Commands
from crewlet.node.coordination import Coordination
from crewlet.node.documented import caps_of, zone_of
from crewlet.node.duties import CompanyWork, open_company_work
from crewlet.node.fleet import FleetReader
from crewlet.node.fleetwatch import FleetWatch
from crewlet.node.freednews import FreedNews
from crewlet.node.historydesk import HistoryDesk
from crewlet.node.inboxdesk import InboxDesk
from crewlet.node.keeping import forget_in_time
from crewlet.node.letterdesk import LetterDesk
from crewlet.node.pausing import Pausing
from crewlet.node.seat import SeatRuntime
from crewlet.node.seatwork import SeatWorkDesk
from crewlet.node.status import FleetSnapshot, HealthSnapshot
from crewlet.node.storecheck import StoreCheck
from crewlet.node.toolservers import SeatTools
from crewlet.node.troubles import Troubles, TroublesSnapshot, told
from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.ports.signals import Forget
from crewlet.ports.term import Term
from crewlet.seats.host import HostConfig, SeatHost
from crewlet.seats.lease import NODE
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.turns.budgetgate import BudgetGate
from crewlet.turns.budgets import BUDGETS_BUCKET, Budgets
from crewlet.turns.dispatch import SeatDispatch
from crewlet.turns.runners import runner_for
from crewlet.turns.slots import Slots
from crewlet.turns.turn import Fence, Runner

_log = structlog.get_logger()
_LOOK_S = 0.25


class Node:
    """One running node. `open`, then `start`; `drain` hands everything back; `close` ends it.

    Args:
        runner: makes the runner of a seat; None takes the one of the seat's kind.
    """

    def __init__(
        self,
        config: NodeConfig,
        company: Company,
        ports: Ports,
        *,
        runner: Callable[[Seat], Runner] | None = None,
    ) -> None:
        self._config = config
        self._company = self._newest_company = company
        self._ports = ports
        self._runner = runner or self._runner_of_its_kind
        self._started_at = ports.clock.now()
        self._has_claimed = False
        self._is_started = False
        self._is_draining = False
        self._is_closing = False
        self._finishing_mailboxes: asyncio.Task[None] | None = None
        self._tasks = Tasks("node")
        self._coordination = Coordination(config, ports, self._tasks)
        self._stores = StoreCheck(
            ports.stores,
            ports.clock,
            ports.is_linked,
            self._coordination.on_reset,
            links=ports.links,
            lapse_s=lambda: self.leases.ttl_s if ports.leases_can_lapse else 0.0,
        )
        self._freed_news = FreedNews(ports.signals)
        self._forget_news: Forget | None = None
        self._troubles = Troubles(ports.signals, config.node_id, self._own_troubles)
        self._forget_questions: tuple[Forget, ...] = ()
        self._seat_work = SeatWorkDesk(ports.signals, config.node_id, lambda handle: self.seats.work(handle))  # noqa: PLW0108 -- made later

    async def open(self) -> None:
        """Open the stores and the mail; nothing is claimed yet, and questions can be answered from here on.

        Raises:
            ConfigRefused: nodes of another kind of coordination run the company's seats.
            Unavailable: the broker did not answer within its bring-up budget.
        """
        ports, config = self._ports, self._config
        leases = await ports.lease_cells.open(leases_bucket(config.lease_ttl_s))
        epochs = await ports.lease_cells.open(EPOCHS_BUCKET)
        were_lower = await self._coordination.begin(epochs)
        self.leases = LeaseStore(
            leases, epochs, clock=ports.clock, entropy=ports.entropy, protocol=config.lease_protocol
        )
        if were_lower:
            self._stores.withhold_claims()
        if self.leases.ttl_s != config.lease_ttl_s:
            _log.warning("lease_ttl_adopted", asked_s=config.lease_ttl_s, ttl_s=self.leases.ttl_s)
        self.beats = Beats(ports.clock.elapsed, self.leases.ttl_s, slowest_s=ports.slowest_beat_s)
        self._ledger = Ledger(await ports.cells.open(LEDGER_BUCKET))
        self._journal = Journal(await ports.cells.open(DELIVERIES_BUCKET), config.owner, ports.clock)
        paused = await ports.cells.open(PAUSES_BUCKET)
        self._pauses = PauseWatch(paused, ports.clock, lambda: self.seats.on_pauses())  # noqa: PLW0108 -- made below
        budgets = await ports.cells.open(BUDGETS_BUCKET)
        self._budgets = Budgets(budgets, lambda who: caps_of(self._company, who), lambda: zone_of(self._company))
        self._budget_gate = BudgetGate(
            self._budgets,
            budgets,
            ports.clock,
            lambda handle: self.seats.on_budget(handle),  # noqa: PLW0108 -- made below
        )
        asked = await ports.cells.open(CHANNELS_BUCKET)
        self._channels = Channels(asked)
        self._mail = await ports.open_mail(self.leases.ttl_s)
        self._outbox = Outbox(self._mail, self.company, ports.clock, config.node_id)
        self._events = Events(self._mail, ports.clock, ports.entropy, config.node_id)
        self._slots = Slots(config.max_concurrent)
        work = await open_company_work(
            node_id=config.node_id,
            owner=config.owner,
            roles=config.roles,
            grace_s=config.removed_seat_grace_s,
            maintenance_every_s=config.maintenance_every_s,
            company=self.company,
            lease_cells=ports.lease_cells,
            cells=ports.cells,
            leases=self.leases,
            mail=self._mail,
            outbox=self._outbox,
            channels=asked,
            pauses=paused,
            budgets=budgets,
            clock=ports.clock,
            entropy=ports.entropy,
            has_peers=ports.leases_can_lapse,
            beats=self.beats,
            tell=self._events.tell,
        )
        self._mailboxes, self._duties = work.mailboxes, work.duties
        self.seats = SeatRuntime(
            self.company,
            self._mail,
            self._dispatch,
            fence=self._fence,
            pauses=self._pauses,
            is_spent=lambda handle: self._budget_gate.over(handle) is not None,
            reopen=self._reopen,
            tools=SeatTools(
                ports.tool_servers,
                variable=config.variable,
                base_env=config.program_env,
                default_cwd=config.company_dir,
            ),
            journal=self._journal,
            clock=ports.clock,
            note_epoch=self._coordination.note,
        )
        self._fleet_watch = FleetWatch(work.roster, self.fleet, ports.clock, self._tasks)
        self.host = SeatHost(
            HostConfig(
                node_id=config.node_id,
                owner=config.owner,
                roles=config.roles,
                labels=config.labels,
                handoff_wait_s=config.handoff_wait_s,
            ),
            self.leases,
            lambda: self._company.seats,
            self.seats,
            clock=ports.clock,
            entropy=ports.entropy,
            deadline=ports.deadline,
            leases_can_lapse=ports.leases_can_lapse,
            may_claim=self._may_claim,
            beats=self.beats,
            on_beat=ports.deadline.beat,
            status=work.roster.status,
            on_freed=self._freed_news.tell,
            on_roster=self._fleet_watch.note,
        )
        pausing = Pausing(Pauses(paused, self._events.tell), self._mail, self.company, ports.entropy)
        self.commands = self._make_commands(work, pausing)
        self._fleet = FleetReader(
            self.leases,
            leases,
            self.company,
            config.node_id,
            pausing.in_force,
            others=work.roster.others,
            registry=work.registry,
        )

    @property
    def contested(self) -> Latch[ConfigRefused]:
        """Set, with what a person is to be told, when another node runs seats beside this one's own leases."""
        return self._coordination.contested

    def company(self) -> Company:
        """The document in force."""
        return self._company

    async def adopt(self, company: Company) -> None:
        """Put another document in force without a restart. Called after `start`; of calls that overlap the last counts.

        The mailboxes of its seats are made first, so that nobody here writes to a seat that has none. A seat that stays
        goes on as it was taken; one that left or is placed elsewhere is given back, and a new one taken, at once.
        """
        if self._is_closing:
            return
        self._newest_company = company
        making = self._tasks.start(self._make_mailboxes(company), "mailboxes of another company")
        await asyncio.wait([making])
        if self._newest_company is company and not self._is_closing:
            self._company = company
            _log.info("company_adopted", company=company.name, seats=len(company.seats))
            self._budget_gate.recheck()
            self.host.request_sweep()

    async def start(self) -> None:
        """Make the company's mailboxes, then begin to claim seats."""
        await self._make_mailboxes(self._company)
        await self._give_back_left()
        self._has_claimed = True
        self._pauses.start()
        self._budget_gate.start()
        self._tasks.start_eternal(forget_in_time(self._ports.history, self._ports.clock), "history")
        self._tasks.start(self._stores.run(), "stores")
        self._forget_news = await self._freed_news.listen(self.host.hear_freed)
        self._forget_questions = (await self._troubles.serve(), await self._seat_work.serve())
        await self._coordination.recheck()
        await self.host.start()
        self._duties.start()
        self._is_started = True
        self._ports.deadline.beat()
        _log.info("node_started", node=self._config.node_id, owner=self._config.owner)

    async def drain(self) -> None:
        """Hand every seat back, its running turn finished first.

        There is no bound on the wait for turns, unless the broker is gone for good: then they are ended.
        """
        if self._is_draining:
            return
        self._is_draining = True
        _log.info("engine_draining", in_flight=self.seats.in_flight)
        self._slots.close()
        giving_back = self._tasks.start(self._duties.stop(), "giving duties back")
        watching = self._tasks.start(self._hurry_once_gone(), "watching for the broker's end")
        await self.host.drain()
        watching.cancel()
        await asyncio.wait([giving_back])
        self._mail.pause()
        _log.info("drain_complete")

    async def _hurry_once_gone(self) -> None:
        if (is_gone := self._ports.is_gone) is None:
            return
        while not is_gone():
            await self._ports.clock.sleep(_LOOK_S)
        _log.warning("drain_hurried", reason="the broker does not take this node back", in_flight=self.seats.in_flight)
        self.host.hurry("broker_gone")

    async def close(self) -> None:
        """Stop everything. Duties and seats still held are given back as well as the store lets us."""
        self._is_closing = True
        await self._duties.stop()
        await self._tasks.stop()
        for forget in (self._forget_news, *self._forget_questions):
            if forget is not None:
                await forget()
        await self.host.stop()
        if self._has_claimed and self.seats.in_flight == 0 and self.host.has_ended_all:
            # Whatever lease could not be given back, nothing acts under it any more.
            self._ports.deadline.good_until(None)
        await self._pauses.stop()
        await self._budget_gate.stop()
        await self._events.stop()
        await self.leases.stop()
        await self._coordination.end()
        await self._ports.close_mail()
        _log.info("engine_stopped", node=self._config.node_id)

    def health(self) -> HealthSnapshot:
        """The facts of this node, from its own memory."""
        status = "shutting_down" if self._is_draining else "ok" if self._is_started else "starting"
        return HealthSnapshot(
            status=status,
            node=self._config.node_id,
            owner=self._config.owner,
            version=__version__,
            started_at=self._started_at,
            queue="connected" if self._ports.is_linked() else "disconnected",
            in_flight=self.seats.in_flight,
            shutting_down=self._is_draining,
            seats=tuple(sorted(self.host.held())),
            has_presence=self.host.presence_held(),
            presence_error=self.host.presence_trouble(),
            id_held_by=self.host.id_rival(),
            lease_ttl_s=self.leases.ttl_s,
            stall_lag_seconds=self.beats.stall_s(),
            unproven_seconds=dict(self.host.unproven_seconds()) or None,
            nodes=self.host.live_nodes,
            other_documents=self._fleet_watch.other_documents or None,
            last_error=dict(self.seats.last_error()) or None,
            dead_letters=self._mail.tally.dead_letters or None,
            failed_burials=self._mail.tally.failed_burials or None,
            held_back=dict(self.seats.held_back()) or None,
            waiting=dict(self.seats.waiting()) or None,
            store_faults=dict(self._stores.faults) or None,
        )

    async def fleet(self) -> FleetSnapshot:
        """The fleet, from the leases.

        Raises:
            Unavailable: the lease store did not answer.
        """
        return await self._fleet.read()

    async def _give_back_left(self) -> None:
        if self._ports.give_back_left is None:
            return
        try:
            if given := await self._ports.give_back_left(self._journal):
                _log.info("left_mail_given_back", messages=given)
        except CrewletError as error:
            _log.warning("left_mail_not_given_back", error=str(error))

    async def troubles(self) -> TroublesSnapshot:
        """What is the matter with seats, as the nodes that hold them say. Never raises for the world."""
        try:
            nodes = len(await self.leases.list_live(NODE))
        except Unavailable:
            nodes = self.host.live_nodes
        return await self._troubles.of_fleet(nodes or 1)

    def _own_troubles(self) -> Mapping[str, str]:
        return told(
            unproven_s=self.host.unproven_seconds(),
            held_back=self.seats.held_back(),
            waiting=self.seats.waiting(),
            last_error=self.seats.last_error(),
        )

    def _make_commands(self, work: CompanyWork, pausing: Pausing) -> Commands:
        ports, config = self._ports, self._config
        inboxes = InboxDesk(
            mail=self._mail,
            ledger=self._ledger,
            journal=self._journal,
            company=self.company,
            fleet=self.fleet,
            over=self._budgets.refusal,
            work=self._seat_work.of,
            node_id=config.node_id,
            clock=ports.clock,
            registry=work.registry,
            retirements=work.retirements,
            grace_s=config.removed_seat_grace_s,
        )
        replays = Replays(self._mail, self._ledger, lambda: ports.cells.open(REPLAYS_BUCKET), config.owner, ports.clock)
        letters = LetterDesk(self._mail.dead_letters, replays, self.company, config.node_id)
        history = HistoryDesk(
            history=ports.history,
            company=self.company,
            fleet=self.fleet,
            running=self.seats.running_turns,
            waiting=self.seats.waiting,
            node_id=config.node_id,
            clock=ports.clock,
        )
        budgets = BudgetDesk(self._budgets, self.company)
        return Commands(
            self._outbox, ports.entropy, inboxes, letters, work.desk, pausing, history, budgets, work.schedules
        )

    def _may_claim(self) -> bool:
        return not self._ports.leases_can_lapse or self._stores.may_claim()

    def _reopen(self, handle: str) -> None:
        self.host.reopen(handle)

    def _fence(self, handle: str) -> Fence | None:
        return self.host.fence(handle)

    def _dispatch(self, seat: Seat, term: Term) -> SeatDispatch:
        ports = self._ports
        return SeatDispatch(
            seat,
            may_start=self.host.may_start,
            note_deferral=self.host.note_deferral,
            fence=self.host.fence,
            holds=self.seats.holds,
            ledger=self._ledger,
            outbox=self._outbox,
            runner=self._runner(seat),
            servers=lambda: self.seats.tool_servers(term),
            slots=self._slots,
            clock=ports.clock,
            entropy=ports.entropy,
            history=ports.history,
            spending=self._budget_gate,
            channels=self._channels,
            tell=self._events.tell,
            on_turn=self.seats.on_turn,
        )

    def _runner_of_its_kind(self, seat: Seat) -> Runner:
        return runner_for(
            seat,
            programs=self._ports.programs,
            clock=self._ports.clock,
            entropy=self._ports.entropy,
            base_env=self._config.program_env,
            default_cwd=self._config.company_dir,
            variable=self._config.variable,
        )

    async def _make_mailboxes(self, company: Company) -> None:
        if self._finishing_mailboxes is not None:
            # What is still missing of an earlier company's is not made any more: its seats may have left.
            self._finishing_mailboxes.cancel()
        handles = [seat.handle for seat in company.seats]
        try:
            made = await self._mailboxes.ensure(handles)
            _log.info("seat_mailboxes_ready", seats=len(handles), made=made)
        except Unavailable as error:
            _log.warning("seat_mailboxes_delayed", seats=len(handles), error=str(error))
            if self._newest_company is company and not self._is_closing:
                self._finishing_mailboxes = self._tasks.start(self._finish_mailboxes(handles), "mailboxes")

    async def _finish_mailboxes(self, handles: list[str]) -> None:
        made = await self._mailboxes.ensure_until_made(handles)
        _log.info("seat_mailboxes_ready", seats=len(handles), made=made)
