"""The handler of one seat's inbox: from the deliveries of a partition to one answer for all of them.

It decides whether a turn may run here, which of the mail is still to be worked, and what becomes of the mail when the
turn has ended one way or another. Who owns the seat, what is recorded, and how a turn runs are asked of others.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from crewlet.company.model import Seat
from crewlet.kit import logcontext
from crewlet.mail.channels import Channels
from crewlet.mail.conversations import EventReader
from crewlet.mail.events import Tell, tell_nobody
from crewlet.mail.ledger import Completion, Ledger
from crewlet.mail.outbox import Outbox
from crewlet.mail.screening import BUDGET_WINDOW, Posture, Refusal, screen, unowned
from crewlet.mail.switchboard import either
from crewlet.mail.work_key import work_key
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Fenced
from crewlet.ports.history import Dispatched, History, NoHistory
from crewlet.ports.mail import Ack, Answer, BatchOptions, Bury, Defer, Delivery, Nak, Outcome, Settling
from crewlet.ports.tools import ToolServer
from crewlet.turns import intake
from crewlet.turns.account import Account
from crewlet.turns.course import Course
from crewlet.turns.endings import Endings
from crewlet.turns.intake import Intake
from crewlet.turns.means import SeatMeans, TurnMeans
from crewlet.turns.questions import closed_questions, questions_in
from crewlet.turns.record import TurnNote, Work
from crewlet.turns.run import Run
from crewlet.turns.slots import Slot, Slots, SlotsClosed
from crewlet.turns.spending import NoBudgets, Spending
from crewlet.turns.turn import Fence, Runner, Turn

_log = structlog.get_logger()

_READ_AHEAD_S = 1.0
_LAST_RECORD_S = 5.0
"""How long a release waits for the record of what it ended: longer than a ledger that is there takes for one."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What the ledger was asked of a whole batch, so that its partitions need not ask one by one.

    Attributes:
        asked_at: a reading of `Clock.elapsed`; the answer counts for a second from then.
        unworked: the triggers of which it still tells all that there is to know.
    """

    asked_at: float
    unworked: set[str]
    reading: "asyncio.Task[Mapping[str, Completion]]"


def _always_current() -> Posture:
    return "current"


def _no_servers() -> Sequence[ToolServer]:
    return ()


class SeatDispatch:
    """Runs the mail of one seat. One call at a time, as the mail port promises for one attachment.

    Args:
        seat: whose inbox.
        may_start: the epoch under which a new turn of this handle may start now, or None.
        note_deferral: told when a delivery of this handle was deferred, so that the inbox is opened again.
        fence: the fence of this handle's present tenure, or None when it has none here.
        holds: the holds in force on this handle's inbox.
        posture: this node's.
        ledger, outbox, runner, clock, entropy: what the turn uses.
        slots: shared by all seats of the process.
        history: where this node keeps what it did.
        spending: the budgets.
        servers: the tool servers of the seat's present tenure.
        channels: by which seats ask each other; None where they cannot.
        tell: publishes what happened.
        on_turn: told what happens in turns, for status pages. What it raises is logged.
    """

    def __init__(
        self,
        seat: Seat,
        *,
        may_start: Callable[[str], int | None],
        note_deferral: Callable[[str], None],
        fence: Callable[[str], Fence | None],
        holds: Callable[[str], Collection[str]],
        ledger: Ledger,
        outbox: Outbox,
        runner: Runner,
        slots: Slots,
        clock: Clock,
        entropy: Entropy,
        posture: Callable[[], Posture] = _always_current,
        history: History | None = None,
        spending: Spending | None = None,
        servers: Callable[[], Sequence[ToolServer]] = _no_servers,
        channels: Channels | None = None,
        tell: Tell = tell_nobody,
        on_turn: Callable[[TurnNote], None] | None = None,
    ) -> None:
        self._seat = seat
        self._handle = seat.handle
        self._may_start = may_start
        self._note_deferral = note_deferral
        self._fence = fence
        self._holds = holds
        self._posture = posture
        self._ledger = ledger
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._entropy = entropy
        self._history = history or NoHistory()
        self._spending = spending or NoBudgets()
        self._channels = channels
        self._means = SeatMeans(seat.handle, outbox, clock, servers, channels)
        self._on_turn = on_turn
        self._tell = tell
        self._endings = Endings(
            seat.handle, ledger=ledger, clock=clock, refuse=self._refuse, skipped=self._skipped, tell=tell
        )
        self._course = Course(seat.handle, runner, self._endings)
        # Bound once: the module's own looks its settings up at each line, also at one that is not written.
        self._log = _log.bind()
        self._run: Run | None = None
        self._newest: Run | None = None
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._ahead: _Ahead | None = None
        self._reader = EventReader()
        self.refusal: Refusal | None = None
        """Why the newest mail was not worked; None since some was."""

    @property
    def runner(self) -> Runner:
        return self._runner

    @property
    def is_busy(self) -> bool:
        """Whether deliveries are being worked, wait here for a slot, or are being recorded."""
        return self._run is not None or self._endings.is_recording

    def batches(self, max_messages: int, linger_s: float) -> BatchOptions:
        """How this inbox is batched."""
        return self._reader.batches(max_messages, linger_s, self.preview)

    def preview(self, deliveries: Sequence[Delivery]) -> None:
        """What was taken together: the ledger is asked of all of it at once."""
        mail = intake.read(deliveries, self._reader.event)
        asking = self._ledger.finished(self._handle, mail.triggers, mail.chat_messages)
        reading = asyncio.create_task(asking, name=f"ledger {self._handle}")
        reading.add_done_callback(_look_at)
        self._ahead = _Ahead(self._clock.elapsed(), set(mail.triggers), reading)

    async def __call__(self, deliveries: Sequence[Delivery]) -> Answer:
        """Work one partition; see the mail port.

        Mail that belongs to another node, or to nobody just now, is deferred. What is no event is buried. Mail that
        is finished is acked, once the ledger says so. Mail whose turn broke without a trace comes back on the nak
        schedule. A turn that ended well is over before its record is written: the next may run meanwhile, while what
        was read ahead of it is fresh.

        Cancellation: the turn is ended, and seen to end, before it goes on.
        """
        fence = self._fence(self._handle) if self._may_start(self._handle) is not None else None
        refusal = self._screen(is_owned=fence is not None)
        if fence is None or refusal is not None:
            return self._refuse(refusal or unowned(self._handle), [delivery.id for delivery in deliveries])
        self.refusal = None
        run = self._run = self._newest = Run(fence)
        self._at_rest.clear()
        mail = intake.read(deliveries, self._reader.take)
        try:
            outcome = await self._screened(run, mail)
            if isinstance(outcome, Nak):
                self._came_back(deliveries, mail.triggers, outcome.reason)
            return outcome
        except Fenced as closed:
            return self._refuse(Refusal("fenced", str(closed) or "the fence closed"), mail.triggers)
        finally:
            self._run = None
            self._at_rest.set()

    async def cancel(self, reason: str) -> None:
        """End the turn in progress, if there is one, and return when it is seen to end. Its mail is deferred.

        A call that still waits for a slot does not start. Cancellation: the turn is ended all the same; unseen.
        """
        run = self._run
        if run is None:
            return
        run.stop_reason = run.stop_reason or reason
        if run.task is None:
            return
        run.end()
        await run.ended.wait()

    async def recorded(self) -> None:
        """Wait until the ledger has what the newest turn, which `cancel` saw to end, has to tell it.

        A few seconds at most, and no longer than the lease keeps everybody else away: given back earlier, the next
        owner would find no record, and do the turn's effect again.
        """
        run = self._newest
        if run is None or not self.is_busy:
            return
        left_s = min(_LAST_RECORD_S, run.fence.good_until - self._clock.elapsed())
        if left_s > 0:
            await either(self._told(run), self._clock.sleep(left_s))

    async def _told(self, run: Run) -> None:
        if run.task is not None:  # one that waits for a slot has nothing to tell
            await self._at_rest.wait()
        await self._endings.recorded()

    def stop(self, reason: str) -> None:
        """A person wants the running turn ended. Its mail is recorded as stopped and does not come back.

        A call that still waits for a slot is none: it is screened once more before it starts.
        """
        run = self._run
        if run is not None and run.task is not None and not run.ended.is_set() and run.stopped is None:
            run.stopped = reason
            run.end()

    def _screen(self, *, is_owned: bool) -> Refusal | None:
        return screen(self._handle, is_owned=is_owned, holds=self._holds(self._handle), posture=self._posture())

    async def _finished_of(self, mail: Intake) -> Mapping[str, Completion]:
        """Which of the mail is finished, by an answer that is a second old at most.

        Else the ledger is asked now, and only when it has all that this seat has to tell it.
        """
        ahead, triggers = self._ahead, mail.triggers
        if ahead is not None and ahead.unworked.issuperset(triggers):
            if not ahead.reading.done():
                await asyncio.wait((ahead.reading,))
            if self._clock.elapsed() - ahead.asked_at <= _READ_AHEAD_S:
                ahead.unworked.difference_update(triggers)
                return ahead.reading.result()
        await self._endings.recorded()
        return await self._ledger.finished(self._handle, triggers, mail.chat_messages)

    async def _screened(self, run: Run, mail: Intake) -> Answer:
        if mail.undecodable:
            return self._unreadable(mail.undecodable[0], run.fence)
        triggers = mail.triggers
        if not triggers:
            for event in mail.events:
                _log.info("event_dropped", seat=self._handle, trigger=event.id, type=event.type)
                self._dispatched((event.id,), "ack", f"{event.type} wakes nobody")
            run.fence.check()
            return Ack()
        over = await self._spending.screen(self._handle)
        if over is not None:
            return self._refuse(Refusal(BUDGET_WINDOW, str(over), is_parked=True), triggers)
        finished = await self._finished_of(mail)
        for trigger in triggers if finished else ():
            if (completion := finished.get(trigger)) is not None:
                await self._skip(run, trigger, completion, mail.digests)
        mail = mail.without(finished)
        if self._channels is not None and (asked := questions_in(mail.events)):
            mail = mail.without(await self._skip_closed(run, self._channels, asked))
        if not mail.triggers:
            run.fence.check()
            return Ack()
        slot = await self._slot(run)
        if slot is None:
            return self._refuse(Refusal("draining", "this node starts no further turn"), mail.triggers)
        refusal = self._screen(is_owned=True)
        if refusal is not None:
            slot.release()
            return self._refuse(refusal, mail.triggers)
        try:
            return await self._turn(run, mail)
        finally:
            slot.release()

    async def _slot(self, run: Run) -> Slot | None:
        """A slot with the right to use it: the wait may have been longer than the tenure."""
        try:
            slot = await self._slots.take()
        except SlotsClosed:
            return None
        try:
            # The same tenure, not just a tenure: a seat lost and won again has handed this mail out anew.
            run.fence.check()
            if self._may_start(self._handle) is None:
                raise Fenced(unowned(self._handle).reason)
            if run.stop_reason is not None:
                raise Fenced(run.stop_reason)
        except BaseException:
            slot.release()
            raise
        return slot

    async def _turn(self, run: Run, mail: Intake) -> Outcome | Settling:
        turn_id = self._entropy.uuid()
        key = work_key(self._handle, mail.triggers)
        work = Work(self._handle, turn_id, key, mail.triggers, mail.digests, self._runner.kind)
        account = Account(
            work,
            fence=run.fence,
            history=self._history,
            spending=self._spending,
            clock=self._clock,
            on_turn=self._on_turn,
        )
        bound = logcontext.bind(
            {"turn_id": turn_id, "seat": self._handle, "epoch": run.fence.term.epoch, "work_key": key}
        )
        try:
            account.begin()
            self._log.info("turn_started", triggers=list(work.triggers), runner=work.runner)
            started = self._clock.elapsed()
            turn = self._turn_of(run.fence, mail, account)
            outcome = await self._course.take(run, account, turn)
            if account.record.answered:
                # It may have finished more of the batch than its own mail.
                self._ahead = None
            self._log.debug("turn_settled", outcome=type(outcome).__name__, elapsed_s=self._clock.elapsed() - started)
            return outcome
        finally:
            logcontext.reset(bound)

    def _turn_of(self, fence: Fence, mail: Intake, account: Account) -> Turn:
        work, record = account.work, account.record
        means = TurnMeans(self._means, mail.events, account, fence)
        return Turn(
            turn_id=work.turn_id,
            work_key=work.key,
            seat=self._seat,
            mail=mail.events,
            fence=fence,
            send=means.send,
            progress=account.progress,
            reach=record.outside.append,
            answered=record.has_answered,
            tools=means,
            begin_round=account.begin_round,
            usage=account.usage,
            waiting=account.waiting,
            questions_left=means.questions_left,
        )

    def _unreadable(self, broken: intake.Undecodable, fence: Fence) -> Bury:
        """Give up what is no event: it will not become one by coming back, and a person may want to read it."""
        delivery = broken.delivery
        fence.check()
        _log.error(
            "delivery_undecodable",
            seat=self._handle,
            message_id=delivery.id,
            sequence=delivery.sequence,
            error=broken.error,
        )
        reason = f"not an event: {broken.error}"
        self._dispatched((delivery.id or f"sequence-{delivery.sequence}",), "bury", reason)
        return Bury(delivery, reason)

    def _refuse(self, refusal: Refusal, triggers: Sequence[str]) -> Defer:
        """Hand the mail back, in a way that something is sure to open the inbox again."""
        self.refusal = refusal
        self._note_deferral(self._handle)
        event = "turn_parked" if refusal.is_parked else "turn_deferred"
        _log.info(event, seat=self._handle, refusal=refusal.name, reason=refusal.reason)
        self._dispatched(triggers, "defer", refusal.reason)
        return Defer(refusal.reason)

    async def _skip(self, run: Run, trigger: str, completion: Completion, digests: Mapping[str, str]) -> None:
        if not completion.is_by_thread:
            self._skipped(trigger, f"already finished: {completion.outcome}", completion.turn_id)
            return
        reason = "a later turn answered it in its thread"
        self._skipped(trigger, reason, completion.turn_id)
        run.fence.check()
        # Under its own id too, for whoever follows it; without an answer it is skipped by the thread all the same.
        await self._ledger.record(
            self._handle,
            (trigger,),
            outcome=completion.outcome,
            detail=reason,
            turn_id=completion.turn_id,
            term=run.fence.term,
            digests={trigger: digests[trigger]} if trigger in digests else None,
            admit=run.fence.check,
        )

    async def _skip_closed(self, run: Run, channels: Channels, asked: Mapping[str, str]) -> Collection[str]:
        """Skip the questions to which nobody waits for an answer any more, and say which."""
        closed = await closed_questions(channels, self._handle, asked)
        for trigger, reason in closed.items():
            run.fence.check()
            self._skipped(trigger, reason, "")
            await self._ledger.record(
                self._handle,
                (trigger,),
                outcome="no_action",
                detail=reason,
                term=run.fence.term,
                admit=run.fence.check,
            )
        return closed.keys()

    def _skipped(self, trigger: str, reason: str, turn_id: str) -> None:
        skipped = {"seat": self._handle, "trigger": trigger, "reason": reason, "by_turn": turn_id}
        _log.info("turn_trigger_skipped", **skipped)
        self._tell("turn_trigger_skipped", skipped)
        self._dispatched((trigger,), "ack", reason)

    def _came_back(self, deliveries: Sequence[Delivery], triggers: Sequence[str], reason: str) -> None:
        """Mail that failed comes back, but for what was in its last delivery: that is buried."""
        last = {delivery.id for delivery in deliveries if delivery.deliveries_left == 0}
        for answer, some in (
            ("nak", [trigger for trigger in triggers if trigger not in last]),
            ("bury", [trigger for trigger in triggers if trigger in last]),
        ):
            if some:
                self._dispatched(some, answer, reason)

    def _dispatched(self, triggers: Sequence[str], answer: str, reason: str) -> None:
        self._history.note(Dispatched(self._handle, tuple(triggers), answer, reason, self._clock.now()))


def _look_at(reading: "asyncio.Task[Mapping[str, Completion]]") -> None:
    """Perhaps nobody needs the answer any more."""
    if not reading.cancelled():
        reading.exception()
