"""A held seat on this node: what is set up when its lease is won, and torn down before the lease may go.

The inbox is attached last, so that no mail arrives before the seat can work it, and its detach is proven before the
release is reported as done, so that no lease goes while this process could still be handed the seat's mail.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from crewlet.company.model import Company, Seat
from crewlet.mail import topics
from crewlet.mail.pausewatch import PauseWatch
from crewlet.mail.screening import AGENT_NOT_READY, BUDGET_WINDOW, PAUSES_UNREAD, SEAT_PAUSED
from crewlet.node.seatwork import SeatWork
from crewlet.node.toolservers import SeatTools
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeliveryJournal
from crewlet.ports.errors import Fenced, Misuse
from crewlet.ports.mail import Attachment, Mail
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolServer
from crewlet.turns.dispatch import SeatDispatch
from crewlet.turns.record import TurnNote
from crewlet.turns.turn import Fence, StandingRunner

_log = structlog.get_logger()

_TOOLS_GRACE_S: Final = 2.0
"""How long the tool servers of a seat that is handed over may take to end by themselves."""


@dataclass(slots=True)
class _Running:
    """What exists for one tenure of one seat. `question`: whether it is paused, asked when the tenure had begun."""

    term: Term
    dispatch: SeatDispatch
    attachment: Attachment
    question: int
    standing: StandingRunner | None


class SeatRuntime:
    """The host's hooks: turns leases into running seats and back.

    Args:
        company: the document in force.
        mail: the port.
        make_dispatch: builds the handler of a seat's inbox for one tenure.
        journal: where mail that comes back is noted.
        fence: the fence of a handle's present tenure.
        pauses: which seats are paused; `on_pauses` is to be called after each change of it.
        is_spent: whether a seat may spend nothing more; `on_budget` is to be called after each change of it.
        reopen: has an inbox read again at once that a deferral had stopped, where a turn of the seat may start.
        tools: the tool servers of the seats that run here.
        note_epoch: told of each tenure as it is established.
    """

    def __init__(
        self,
        company: Callable[[], Company],
        mail: Mail,
        make_dispatch: Callable[[Seat, Term], SeatDispatch],
        *,
        fence: Callable[[str], Fence | None],
        pauses: PauseWatch,
        is_spent: Callable[[str], bool],
        reopen: Callable[[str], None],
        tools: SeatTools,
        journal: DeliveryJournal | None = None,
        clock: Clock,
        note_epoch: Callable[[Term], None] = lambda _: None,
    ) -> None:
        self._note_epoch = note_epoch
        self._company = company
        self._mail = mail
        self._make_dispatch = make_dispatch
        self._fence = fence
        self._pauses = pauses
        self._is_spent = is_spent
        self._reopen = reopen
        self._tools = tools
        self._journal = journal
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._standing: dict[str, tuple[Term, StandingRunner]] = {}
        self._last_error: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._turns: dict[str, str] = {}
        self._turns_began: dict[str, datetime] = {}

    @property
    def in_flight(self) -> int:
        """Turns running now."""
        return sum(each.dispatch.is_busy for each in self._running.values())

    def last_error(self) -> Mapping[str, str]:
        """Why a held seat's last turn broke, its agent is not ready or its tools are not there, or why its tools kept
        this node from taking a seat, by handle, for those of which it is so."""
        troubles = {handle: runner.trouble for handle, (_, runner) in self._standing.items() if runner.trouble}
        return dict(sorted({**self._last_error, **self._tools.troubles(), **troubles}.items()))

    def tool_servers(self, term: Term) -> Sequence[ToolServer]:
        """What offers tools to the agent of a tenure."""
        return self._tools.of(term)

    def running_turns(self) -> Mapping[str, str]:
        """The ids of the turns that run now, by handle."""
        return self._turns

    def work(self, handle: str) -> SeatWork | None:
        """What a seat that runs here is doing, or why it does nothing; None for one that does not run here."""
        if handle not in self._running:
            return None
        turn_id = self._turns.get(handle, "")
        return SeatWork(
            held=self.held_back().get(handle, ""),
            trouble=self.last_error().get(handle, ""),
            turn_id=turn_id,
            turn_began_at=self._turns_began.get(handle) if turn_id else None,
            waiting=self._waiting.get(handle, "") if turn_id else "",
        )

    def waiting(self) -> Mapping[str, str]:
        """What the running turn of a held seat waits for outside, by handle, for those that do."""
        return dict(sorted(self._waiting.items()))

    def on_turn(self, note: TurnNote) -> None:
        """What happens in the turns of held seats."""
        handle = note.handle
        match note.stage:
            case "started":
                self._turns[handle] = note.turn_id
                self._turns_began[handle] = self._clock.now()
            case "progress":
                return
            case "waiting":
                if note.detail:
                    self._waiting[handle] = note.detail
                    return
            case "finished":
                self._last_error.pop(handle, None)
                self._end_turn(note)
            case "broke" | "breached" | "panicked":
                self._last_error[handle] = note.detail
                self._end_turn(note)
            case "fenced" | "parked" | "stopped":
                self._end_turn(note)
        self._waiting.pop(handle, None)

    def _end_turn(self, note: TurnNote) -> None:
        if self._turns.get(note.handle) == note.turn_id:
            del self._turns[note.handle]

    def holds(self, handle: str) -> Collection[str]:
        """The holds in force on the inbox of a seat that runs here."""
        running = self._running.get(handle)
        return running.attachment.holds if running is not None else ()

    def held_back(self) -> Mapping[str, str]:
        """Why the inbox of a held seat is not being read, by handle, for those whose is not."""
        reasons = {handle: _why_not_reading(running) for handle, running in sorted(self._running.items())}
        return {handle: reason for handle, reason in reasons.items() if reason is not None}

    def is_busy(self, handle: str) -> bool:
        running = self._running.get(handle)
        return running is not None and (running.dispatch.is_busy or running.attachment.is_handling)

    async def on_acquire(self, term: Term, good_until: float) -> None:
        """Establish the seat: its tool servers, then its inbox, held until this node knows whether a person paused the
        seat.

        It does not wait for that: the read is on its way while the inbox is attached.

        Raises:
            Misuse: the company has no such seat any more.
            ToolServerNotStarted, ProgramUnproven: one of its tool servers did not start.
            Unavailable: the inbox could not be attached.
        """
        handle = _handle(term)
        seat = self._company().seat(handle)
        if seat is None:
            raise Misuse(f"the company has no seat {handle!r}")
        self._note_epoch(term)
        started = self._clock.elapsed()
        dispatch = self._make_dispatch(seat, term)
        standing = self._stand_up(term, dispatch)
        await self._tools.start(seat, term)
        company = self._company()
        question = self._pauses.ask()
        attachment = await self._mail.attach(
            topics.inbox(handle),
            dispatch,
            good_until=good_until,
            holds=self._first_holds(handle, standing),
            options=dispatch.batches(company.coalesce_max_batch, company.coalesce_window_s),
            journal=self._journal,
        )
        running = self._running[handle] = _Running(term, dispatch, attachment, question, standing)
        self._hold(handle, running)
        elapsed_ms = round(1000 * (self._clock.elapsed() - started))
        _log.info("inbox_attached", seat=handle, epoch=term.epoch, elapsed_ms=elapsed_ms)

    async def on_release(self, term: Term, *, reason: str, is_voluntary: bool) -> None:
        """Take the seat down; returns only when nothing of this tenure can act or be handed mail any more.

        The host has waited for the running turn where it is entitled to finish; what runs now is ended, and its mail
        goes back inside its own window. Each part is tried even when another fails: a broker that cannot prove the
        detach must not keep a turn or a tool server alive.

        Raises:
            DetachUnproven, ProgramUnproven: something may be left. The lease must be kept; call again.
        """
        handle = _handle(term)
        running = self._running.get(handle)
        ending_tools = self._tools.end(term, grace_s=_TOOLS_GRACE_S if is_voluntary else 0.0)
        if running is None or running.term != term:
            await _all_of(self._end_standing(term), ending_tools)
            return
        await _all_of(running.attachment.detach(), self._end_work(running, reason), ending_tools)
        if self._running.get(handle) is running:
            del self._running[handle]
            self._last_error.pop(handle, None)

    def on_admission(self, handle: str, admits: bool) -> None:
        running = self._running.get(handle)
        if running is None:
            return
        if admits:
            running.attachment.unquiesce()
        else:
            running.attachment.quiesce()

    def on_pauses(self) -> None:
        """What is known of the pauses has changed: hold and open the inboxes accordingly."""
        for handle, running in self._running.items():
            self._hold(handle, running)

    def _stand_up(self, term: Term, dispatch: SeatDispatch) -> StandingRunner | None:
        """Start what the seat's runner keeps, beside everything else; its inbox waits for it, nobody else does."""
        handle, runner = _handle(term), dispatch.runner
        fence = self._fence(handle)
        if not isinstance(runner, StandingRunner):
            return None
        if fence is None or fence.term != term:
            raise Fenced(f"{term.resource} at epoch {term.epoch} is not held here")
        self._standing[handle] = term, runner
        runner.start(fence, lambda: self._on_agent(handle))
        return runner

    async def _end_work(self, running: _Running, reason: str) -> None:
        await self._end_programs(running, reason)
        await running.dispatch.recorded()

    async def _end_programs(self, running: _Running, reason: str) -> None:
        await running.dispatch.cancel(reason)
        await self._end_standing(running.term)

    async def _end_standing(self, term: Term) -> None:
        handle = _handle(term)
        began, runner = self._standing.get(handle, (None, None))
        if runner is not None and began == term:
            await runner.end()
            self._standing.pop(handle, None)

    def _first_holds(self, handle: str, standing: StandingRunner | None) -> Collection[str]:
        paused = (SEAT_PAUSED,) if self._pauses.of(handle) else ()
        spent = (BUDGET_WINDOW,) if self._is_spent(handle) else ()
        unready = (AGENT_NOT_READY,) if standing is not None and not standing.is_ready else ()
        return (PAUSES_UNREAD, *paused, *spent, *unready)

    def _on_agent(self, handle: str) -> None:
        running = self._running.get(handle)
        if running is not None:
            self._hold_for_agent(handle, running)

    def _hold_for_agent(self, handle: str, running: _Running) -> None:
        if running.standing is None:
            return
        if not running.standing.is_ready:
            running.attachment.hold(AGENT_NOT_READY)
        elif AGENT_NOT_READY in running.attachment.holds:
            self._unhold(handle, running, AGENT_NOT_READY)

    def on_budget(self, handle: str) -> None:
        """What is known of a seat's budget has changed."""
        running = self._running.get(handle)
        if running is not None:
            self._hold(handle, running)

    def _hold_for_budget(self, handle: str, running: _Running) -> None:
        attachment = running.attachment
        if self._is_spent(handle):
            attachment.hold(BUDGET_WINDOW)
        elif BUDGET_WINDOW in attachment.holds:
            self._unhold(handle, running, BUDGET_WINDOW)

    def _hold(self, handle: str, running: _Running) -> None:
        self._hold_for_budget(handle, running)
        self._hold_for_agent(handle, running)
        attachment, pause = running.attachment, self._pauses.of(handle)
        holds = attachment.holds
        if pause is not None:
            if SEAT_PAUSED not in holds:
                attachment.hold(SEAT_PAUSED)
                _log.info("seat_pause_held", seat=handle, epoch=running.term.epoch, pause=pause.id)
            if pause.stop_running:
                running.dispatch.stop(str(pause))
        elif SEAT_PAUSED in holds:
            self._unhold(handle, running, SEAT_PAUSED)
            _log.info("seat_pause_lifted", seat=handle, epoch=running.term.epoch)
        if PAUSES_UNREAD in holds and self._pauses.is_answered(running.question):
            self._unhold(handle, running, PAUSES_UNREAD)

    def _unhold(self, handle: str, running: _Running, name: str) -> None:
        """Lift a hold, and with the last of them the stop of whatever mail was deferred because of it."""
        running.attachment.unhold(name)
        if not running.attachment.holds:
            self._reopen(handle)

    def on_established(self, term: Term) -> None:
        """Nothing here waits for a seat to be established: its inbox delivers, and admission says when."""

    def on_renewed(self, term: Term, good_until: float) -> None:
        running = self._running.get(_handle(term))
        if running is not None and running.term == term:
            running.attachment.prolong(good_until)

    async def stop_programs(self, term: Term) -> None:
        """End the seat's turn and its programs before the lease can lapse, and take no more deliveries.

        Raises:
            ProgramUnproven: some process may be left.
        """
        running = self._running.get(_handle(term))
        if running is not None and running.term == term:
            running.attachment.quiesce()
            await _all_of(self._end_programs(running, "lease_lapsing"), self._tools.end(term))
        else:
            await _all_of(self._end_standing(term), self._tools.end(term))


async def _all_of(*parts: Coroutine[Any, Any, object]) -> None:
    """Do all of it, even when some fails, and then raise what failed first."""
    for outcome in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _why_not_reading(running: _Running) -> str | None:
    attachment, refusal = running.attachment, running.dispatch.refusal
    if holds := attachment.holds:
        return ", ".join(sorted(holds))
    if attachment.is_quiesced:
        return refusal.name if refusal is not None else "quiesced"
    return None


def _handle(term: Term) -> str:
    return term.resource.partition(":")[2]
