"""The handler of one seat's inbox: from the deliveries of a partition to one answer for all of them.

It decides whether a turn may run here, which of the mail is still to be worked, and what becomes of the mail when the
turn has ended one way or another. Who owns the seat, what is recorded, and how a turn runs are asked of others.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from crewlet.company.model import Seat
from crewlet.mail.ledger import Completion, Ledger
from crewlet.mail.outbox import Outbox
from crewlet.mail.screening import UNOWNED, Posture, Refusal, screen
from crewlet.mail.work_key import work_key
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Ack, Defer, Delivery, Nak, Outcome, Settling
from crewlet.turns import intake
from crewlet.turns.intake import Intake
from crewlet.turns.record import Stage, TurnNote, TurnRecord
from crewlet.turns.sending import TurnMail
from crewlet.turns.slots import Slot, Slots, SlotsClosed
from crewlet.turns.turn import Fence, OutcomeWord, Runner, Turn, TurnBroke, TurnResult

_log = structlog.get_logger()

_LAST_RECORD_S = 2.0
_RECORD_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0
_READ_AHEAD_S = 1.0


@dataclass(slots=True)
class _Run:
    """The one call in progress.

    Attributes:
        stop_reason: why this node ends it; its mail goes back.
        stopped: what a person said who ended its turn; its mail is finished with.
    """

    fence: Fence
    stop_reason: str | None = None
    stopped: str | None = None
    task: "asyncio.Task[TurnResult] | None" = None


@dataclass(frozen=True, slots=True)
class _Work:
    """What a turn works on, and what it has done."""

    turn_id: str
    key: str
    triggers: tuple[str, ...]
    record: TurnRecord


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
        self._outbox = outbox
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._entropy = entropy
        self._on_turn = on_turn
        self._run: _Run | None = None
        self._ahead: _Ahead | None = None
        self._recording: dict[asyncio.Task[Outcome], None] = {}
        self.refusal: Refusal | None = None
        """Why the newest mail was not worked; None since some was."""

    @property
    def runner(self) -> Runner:
        return self._runner

    @property
    def is_busy(self) -> bool:
        """Whether deliveries are being worked, wait here for a slot, or are being recorded."""
        return self._run is not None or bool(self._recording)

    def preview(self, deliveries: Sequence[Delivery]) -> None:
        """What was taken together: the ledger is asked of all of it at once."""
        mail = intake.read(deliveries)
        asking = self._ledger.finished(self._handle, mail.triggers, mail.chat_messages)
        reading = asyncio.create_task(asking, name=f"ledger {self._handle}")
        reading.add_done_callback(_look_at)
        self._ahead = _Ahead(self._clock.elapsed(), set(mail.triggers), reading)

    async def __call__(self, deliveries: Sequence[Delivery]) -> Outcome | Settling:
        """Work one partition; see the mail port.

        Mail that belongs to another node, or to nobody just now, is deferred. Mail that is finished is acked, once the
        ledger says so. Mail whose turn broke without a trace comes back on the nak schedule. A turn that ended well is
        over before its record is written: the next may run meanwhile, while what was read ahead of it is fresh.

        Cancellation: the turn is ended, and seen to end, before it goes on.
        """
        fence = self._fence(self._handle) if self._may_start(self._handle) is not None else None
        refusal = self._screen(is_owned=fence is not None)
        if fence is None or refusal is not None:
            return self._refuse(refusal or UNOWNED)
        self.refusal = None
        run = self._run = _Run(fence)
        try:
            return await self._screened(run, intake.read(deliveries))
        except Fenced as closed:
            return self._defer("fenced", str(closed) or "the fence closed")
        finally:
            self._run = None

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
        run.task.cancel()
        await asyncio.wait((run.task,))

    def stop(self, reason: str) -> None:
        """A person wants the running turn ended. Its mail is recorded as stopped and does not come back.

        A call that still waits for a slot is none: it is screened once more before it starts.
        """
        run = self._run
        if run is not None and run.task is not None and not run.task.done() and run.stopped is None:
            run.stopped = reason
            run.task.cancel()

    def _screen(self, *, is_owned: bool) -> Refusal | None:
        return screen(is_owned=is_owned, holds=self._holds(self._handle), posture=self._posture())

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
        while self._recording:
            await asyncio.wait(list(self._recording))
        return await self._ledger.finished(self._handle, triggers, mail.chat_messages)

    async def _screened(self, run: _Run, mail: Intake) -> Outcome | Settling:
        for broken in mail.undecodable:
            await self._give_up_undecodable(broken, run.fence)
        triggers = mail.triggers
        if not triggers:
            for event in mail.events:
                _log.info("event_dropped", seat=self._handle, trigger=event.id, type=event.type)
            run.fence.check()
            return Ack()
        finished = await self._finished_of(mail)
        for trigger in triggers if finished else ():
            if (completion := finished.get(trigger)) is not None:
                await self._skip(run, trigger, completion)
        mail = mail.without(finished)
        run.fence.check()
        if not mail.triggers:
            return Ack()
        slot = await self._slot(run)
        if slot is None:
            return self._defer("draining", "this node starts no further turn")
        refusal = self._screen(is_owned=True)
        if refusal is not None:
            slot.release()
            return self._refuse(refusal)
        try:
            return await self._turn(run, mail)
        finally:
            slot.release()

    async def _slot(self, run: _Run) -> Slot | None:
        """A slot with the right to use it: the wait may have been longer than the tenure."""
        try:
            slot = await self._slots.take()
        except SlotsClosed:
            return None
        try:
            # The same tenure, not just a tenure: a seat lost and won again has handed this mail out anew.
            run.fence.check()
            if self._may_start(self._handle) is None:
                raise Fenced("not owned here")
            if run.stop_reason is not None:
                raise Fenced(run.stop_reason)
        except BaseException:
            slot.release()
            raise
        return slot

    async def _turn(self, run: _Run, mail: Intake) -> Outcome | Settling:
        turn_id = self._entropy.uuid()
        key = work_key(self._handle, mail.triggers)
        work = _Work(turn_id, key, mail.triggers, TurnRecord())
        with structlog.contextvars.bound_contextvars(
            turn_id=turn_id, seat=self._handle, epoch=run.fence.term.epoch, work_key=key
        ):
            self._note(work, "started")
            _log.info("turn_started", triggers=list(work.triggers), runner=self._runner.kind)
            started = self._clock.elapsed()
            run.task = asyncio.create_task(self._guarded(self._turn_of(run, mail, work)), name=f"turn {self._handle}")
            try:
                await self._race(run, run.task)
            except asyncio.CancelledError:
                await self._record_last(run, work)
                raise
            outcome = await self._settle(run, work, run.task)
            _log.debug("turn_settled", outcome=type(outcome).__name__, elapsed_s=self._clock.elapsed() - started)
            return outcome

    def _turn_of(self, run: _Run, mail: Intake, work: _Work) -> Turn:
        sender = TurnMail(
            handle=self._handle,
            work=work.key or work.turn_id,
            turn_id=work.turn_id,
            cause=mail.events,
            fence=run.fence,
            outbox=self._outbox,
            clock=self._clock,
            record=work.record,
        )

        def progress(text: str) -> None:
            _log.info("turn_progress", text=text)
            self._note(work, "progress", text)

        return Turn(
            work.turn_id,
            work.key,
            self._seat,
            mail.events,
            run.fence,
            sender.send,
            progress,
            work.record.outside.append,
            work.record.answered.append,
        )

    async def _guarded(self, turn: Turn) -> TurnResult:
        turn.fence.check()
        return await self._runner.run(turn)

    async def _race(self, run: _Run, task: "asyncio.Task[TurnResult]") -> None:
        """Until the turn has ended, by itself or because its fence closed. It is never left running."""

        def close(reason: str) -> None:
            run.stop_reason = run.stop_reason or reason or "the fence closed"
            task.cancel()

        forget = run.fence.on_close(close)
        interrupted = False
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                # Our own, which goes on when the turn is seen to end.
                interrupted = True
                task.cancel()
        forget()
        if interrupted:
            raise asyncio.CancelledError

    async def _settle(self, run: _Run, work: _Work, task: "asyncio.Task[TurnResult]") -> Outcome | Settling:
        """The table of endings. After the fence has closed only what is proven, or panicked, is recorded."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        match error:
            case None:
                return await self._finished(run, work, task.result())
            case Fenced():
                return await self._fenced(run, work, str(error))
            case asyncio.CancelledError() if run.stop_reason is not None:
                return await self._fenced(run, work, run.stop_reason)
            case asyncio.CancelledError() | TurnBroke() | Unavailable() if run.stopped is not None:
                return await self._stopped(run, work, run.stopped)
            case TurnBroke() | Unavailable():
                return await self._broke(run, work, str(error))
            case _:
                return await self._panicked(run, work, error)

    async def _finished(self, run: _Run, work: _Work, result: TurnResult) -> Outcome | Settling:
        if self._is_closed(run) and not work.record.reached_outside:
            return await self._fenced(run, work, "the fence closed as the turn ended")
        answered = work.record.answered if result.outcome in ("delivered", "no_action") else ()
        if answered:
            # It may have finished more of the batch than its own mail.
            self._ahead = None
        recording = asyncio.create_task(self._recorded(run, work, result, answered), name=f"record {self._handle}")
        self._recording[recording] = None
        recording.add_done_callback(self._recording.pop)
        return Settling(recording)

    async def _recorded(self, run: _Run, work: _Work, result: TurnResult, answered: Sequence[str]) -> Outcome:
        await self._complete(run, work, outcome=result.outcome, detail=result.detail, answered=answered)
        _log.info("turn_finished", outcome=result.outcome, detail=result.detail)
        self._note(work, "finished", result.outcome)
        return self._done_with(run, work)

    async def _stopped(self, run: _Run, work: _Work, reason: str) -> Outcome:
        """A person stopped it so that it would not go on: no other run may. Who owns the seat is asked first."""
        if self._is_closed(run):
            return await self._fenced(run, work, "the fence closed as a person stopped the turn")
        _log.warning("agent_turn_stopped", reason=reason, sent=len(work.record.mails))
        self._note(work, "stopped", reason)
        await self._give_up(run, work, reason, outcome="stopped")
        return self._done_with(run, work)

    def _done_with(self, run: _Run, work: _Work) -> Outcome:
        if self._is_closed(run) and not work.record.reached_outside:
            # The record may or may not be there. If it is, the next owner skips the mail; if not, it works it.
            return self._defer("fenced", "the fence closed before the mail was settled")
        return Ack()

    async def _fenced(self, run: _Run, work: _Work, reason: str) -> Outcome:
        _log.warning("turn_fenced", reason=reason, sent=len(work.record.mails))
        self._note(work, "fenced", reason)
        if not work.record.reached_outside:
            return self._defer("fenced", reason)
        await self._give_up(run, work, f"fenced after it had reached outside: {reason}")
        return Ack()

    async def _broke(self, run: _Run, work: _Work, reason: str) -> Outcome:
        reached_outside = work.record.reached_outside
        _log.warning("turn_broke", reason=reason, reached_outside=reached_outside)
        self._note(work, "broke", reason)
        if reached_outside:
            await self._give_up(run, work, f"broke after it had reached outside: {reason}")
            return Ack()
        if self._is_closed(run):
            return self._defer("fenced", reason)
        return Nak(reason)

    async def _panicked(self, run: _Run, work: _Work, error: BaseException) -> Outcome:
        _log.error("dispatch_panicked", error=repr(error), exc_info=error)
        _log.error("turn.guard_breach", kind="unhandled_exception", error=repr(error))
        self._note(work, "panicked", repr(error))
        await self._give_up(run, work, f"panicked: {error!r}")
        return Ack()

    async def _give_up(self, run: _Run, work: _Work, detail: str, *, outcome: OutcomeWord = "failed") -> None:
        await self._complete(run, work, outcome=outcome, detail=detail)
        for trigger in work.triggers:
            self._skipped(trigger, detail, work.turn_id)

    async def _complete(
        self, run: _Run, work: _Work, *, outcome: str, detail: str, answered: Sequence[str] = ()
    ) -> None:
        """Record the turn, again while nobody answers: mail that is acked without a record would be gone.

        It ends with the tenure, or when its patience does: a ledger that stays away must not stop a company.
        """
        give_up_at = self._clock.elapsed() + _RECORD_PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        while not await self._ledger.record(
            self._handle,
            work.triggers,
            outcome=outcome,
            detail=detail,
            turn_id=work.turn_id,
            work_key=work.key,
            term=run.fence.term,
            answered=answered,
        ):
            is_last = self._is_closed(run) or self._clock.elapsed() + pause_s >= give_up_at
            if not is_last:
                await self._clock.sleep(pause_s)
                is_last = self._is_closed(run)  # a successor may have the seat since
            if is_last:
                _log.error("turn_unrecorded", triggers=list(work.triggers), outcome=outcome)
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _record_last(self, run: _Run, work: _Work) -> None:
        """Our own call is being cancelled: a proven effect is still worth one bounded try at the ledger."""
        if work.record.reached_outside:
            last = asyncio.ensure_future(self._give_up(run, work, "cut short after it had reached outside"))
            with suppress(asyncio.CancelledError):
                await asyncio.wait((last,), timeout=_LAST_RECORD_S)
            last.cancel()

    async def _give_up_undecodable(self, broken: intake.Undecodable, fence: Fence) -> None:
        """Settle what is no event.

        It will not become one by coming back, so 25 deliveries would end in the same place; and nothing is lost in
        silence: the log line carries its place in the stream and its beginning, the ledger says `undecodable` to
        whoever follows the message id.
        """
        delivery = broken.delivery
        fence.check()
        _log.error(
            "delivery_undecodable",
            seat=self._handle,
            message_id=delivery.id,
            sequence=delivery.sequence,
            error=broken.error,
            head=delivery.data[:200].decode("utf-8", "replace"),
        )
        trigger = delivery.id or f"sequence-{delivery.sequence}"
        detail = f"not an event: {broken.error}"
        await self._ledger.record(self._handle, (trigger,), outcome="undecodable", detail=detail, term=fence.term)

    def _defer(self, name: str, reason: str) -> Defer:
        return self._refuse(Refusal(name, reason))

    def _refuse(self, refusal: Refusal) -> Defer:
        """Hand the mail back, in a way that something is sure to open the inbox again."""
        self.refusal = refusal
        self._note_deferral(self._handle)
        event = "turn_parked" if refusal.is_parked else "turn_deferred"
        _log.info(event, seat=self._handle, refusal=refusal.name, reason=refusal.reason)
        return Defer(refusal.reason)

    async def _skip(self, run: _Run, trigger: str, completion: Completion) -> None:
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
        )

    def _skipped(self, trigger: str, reason: str, turn_id: str) -> None:
        _log.info("turn_trigger_skipped", seat=self._handle, trigger=trigger, reason=reason, by_turn=turn_id)

    def _is_closed(self, run: _Run) -> bool:
        try:
            run.fence.check()
        except Fenced:
            return True
        return False

    def _note(self, work: _Work, stage: Stage, detail: str = "") -> None:
        if self._on_turn is None:
            return
        try:
            self._on_turn(TurnNote(self._handle, work.turn_id, stage, detail))
        except Exception:  # noqa: BLE001 - whoever watches must not decide what becomes of the mail
            _log.exception("turn_note_failed", stage=stage)


def _look_at(reading: "asyncio.Task[Mapping[str, Completion]]") -> None:
    """Perhaps nobody needs the answer any more."""
    if not reading.cancelled():
        reading.exception()
