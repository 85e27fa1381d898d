"""What becomes of a turn's mail when the turn has ended: the table of endings, and the record in the ledger.

What a turn proves is in its account: one that reached outside and then broke is given up, since a re-run would do the
same again; one that proves nothing comes back.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from crewlet.mail.events import Tell
from crewlet.mail.ledger import Ledger
from crewlet.mail.screening import AGENT_NOT_READY, BUDGET_WINDOW, Refusal
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Ack, Defer, Nak, Outcome, Settling
from crewlet.turns.account import Account
from crewlet.turns.guards import GuardBreached
from crewlet.turns.run import Run
from crewlet.turns.spending import BudgetSpent
from crewlet.turns.turn import AgentNotReady, TurnBroke, TurnResult

_log = structlog.get_logger()

_LAST_RECORD_S = 2.0
_RECORD_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0


class Endings:
    """Settles the turns of one seat.

    Args:
        refuse: hands mail back in a way that something is sure to open the inbox again.
        skipped: told of each trigger that is given up: its id, why, and by which turn.
        tell: publishes what happened.
    """

    def __init__(
        self,
        handle: str,
        *,
        ledger: Ledger,
        clock: Clock,
        refuse: Callable[[Refusal, Sequence[str]], Defer],
        skipped: Callable[[str, str, str], None],
        tell: Tell,
    ) -> None:
        self._handle = handle
        self._ledger = ledger
        self._clock = clock
        self._refuse = refuse
        self._skipped = skipped
        self._tell = tell
        self._log = _log.bind()
        self._recording: dict[asyncio.Task[Outcome], None] = {}

    @property
    def is_recording(self) -> bool:
        """Whether the record of a turn that ended well is still being written."""
        return bool(self._recording)

    async def recorded(self) -> None:
        """Wait until the ledger has all that this seat has to tell it."""
        while self._recording:
            await asyncio.wait(list(self._recording))

    def record_meanwhile(self, recording: "asyncio.Task[Outcome]") -> Settling:
        """The turn ended well, and the next may run while its record is written."""
        self._recording[recording] = None
        recording.add_done_callback(self._recording.pop)
        return Settling(recording)

    async def settle(self, run: Run, account: Account, result: TurnResult | BaseException) -> Outcome:
        """The table of endings. After the fence has closed only what is proven, or panicked, is recorded."""
        if isinstance(result, TurnResult):
            return await self._finished(run, account, result)
        match error := result:
            case Fenced():
                return await self._fenced(run, account, str(error))
            case asyncio.CancelledError() if run.stop_reason is not None:
                return await self._fenced(run, account, run.stop_reason)
            case GuardBreached() if run.stopped is None:
                return await self._breached(run, account, error)
            case BudgetSpent() if run.stopped is None:
                return await self._overspent(run, account, error)
            case AgentNotReady() if run.stopped is None:
                return self._unready(account, str(error))
            case (
                asyncio.CancelledError()
                | TurnBroke()
                | AgentNotReady()
                | Unavailable()
                | GuardBreached()
                | BudgetSpent()
            ) if run.stopped is not None:
                return await self._stopped(run, account, run.stopped)
            case TurnBroke() | Unavailable():
                return await self._broke(run, account, str(error))
            case _:
                _log.error("turn_phase_panicked", error=repr(error), exc_info=error)
                return await self._panicked(run, account, error)

    async def dispatch_panicked(self, run: Run, account: Account, error: Exception) -> Outcome:
        """A defect beside the turn, which has begun and is seen to have ended: a re-run would meet it again."""
        _log.error("dispatch_panicked", error=repr(error), exc_info=error)
        return await self._panicked(run, account, error)

    async def record_last(self, run: Run, account: Account) -> None:
        """The seat's own call is being cancelled: a proven effect is still worth one bounded try at the ledger."""
        account.end("fenced", "cut short")
        if account.record.reached_outside:
            last = asyncio.ensure_future(self._give_up(run, account, "cut short after it had reached outside"))
            with suppress(asyncio.CancelledError):
                await asyncio.wait((last,), timeout=_LAST_RECORD_S)
            last.cancel()

    async def _finished(self, run: Run, account: Account, result: TurnResult) -> Outcome:
        if run.is_closed and not account.record.reached_outside:
            return await self._fenced(run, account, "the fence closed as the turn ended")
        answered = tuple(account.record.answered) if result.outcome in ("delivered", "no_action") else ()
        await self._complete(run, account, outcome=result.outcome, detail=result.detail, answered=answered)
        self._log.info("turn_finished", outcome=result.outcome, detail=result.detail)
        try:
            account.end("finished", result.detail, outcome=result.outcome)
        except Exception as error:  # noqa: BLE001 - the work is done, whatever cannot be put down of it
            _log.error("dispatch_panicked", error=repr(error), exc_info=error)
        return self._done_with(run, account, outcome=result.outcome)

    async def _breached(self, run: Run, account: Account, breach: GuardBreached) -> Outcome:
        """A guard ended it: the turn has failed, and the seat goes on."""
        if run.is_closed and not account.record.reached_outside:
            return await self._fenced(run, account, "the fence closed as a guard ended the turn")
        self._tell_breach(account, breach.kind, breach.detail)
        account.end("breached", str(breach), outcome="failed")
        await self._complete(run, account, outcome="failed", detail=str(breach))
        return self._done_with(run, account, outcome="failed", given_up=str(breach))

    async def _stopped(self, run: Run, account: Account, reason: str) -> Outcome:
        """A person stopped it so that it would not go on: no other run may. Who owns the seat is asked first."""
        if run.is_closed:
            return await self._fenced(run, account, "the fence closed as a person stopped the turn")
        _log.warning("agent_turn_stopped", reason=reason, sent=len(account.record.mails))
        self._tell("agent_turn_stopped", {**_of(account), "reason": reason})
        account.end("stopped", reason)
        await self._complete(run, account, outcome="stopped", detail=reason)
        return self._done_with(run, account, outcome="stopped", given_up=reason)

    def _done_with(self, run: Run, account: Account, *, outcome: str, given_up: str | None = None) -> Outcome:
        if run.is_closed and not account.record.reached_outside:
            # The record may or may not be there. If it is, the next owner skips the mail; if not, it works it.
            return self._fall_back(account, "fenced", "the fence closed before the mail was settled")
        if given_up is not None:
            self._all_skipped(account, outcome, given_up)
        return Ack()

    async def _fenced(self, run: Run, account: Account, reason: str) -> Outcome:
        _log.warning("turn_fenced", reason=reason, sent=len(account.record.mails))
        account.end("fenced", reason)
        if not account.record.reached_outside:
            return self._fall_back(account, "fenced", reason)
        await self._give_up(run, account, f"fenced after it had reached outside: {reason}")
        return Ack()

    async def _overspent(self, run: Run, account: Account, spent: BudgetSpent) -> Outcome:
        """A cap was reached on the way: its mail waits with the rest, unless a re-run would repeat an effect."""
        reached_outside = account.record.reached_outside
        _log.warning("budget_exhausted", reason=str(spent), reached_outside=reached_outside)
        self._tell("budget_exhausted", {**_of(account), "reason": str(spent)})
        account.end("parked", str(spent))
        if reached_outside:
            await self._give_up(run, account, f"its budget ended after it had reached outside: {spent}")
            return Ack()
        return self._fall_back(account, BUDGET_WINDOW, str(spent))

    def _unready(self, account: Account, reason: str) -> Outcome:
        """Nothing was tried. The inbox is held by whoever keeps the agent, until it is there."""
        _log.warning("agent_not_ready", reason=reason)
        account.end("parked", reason)
        return self._fall_back(account, AGENT_NOT_READY, reason)

    async def _broke(self, run: Run, account: Account, reason: str) -> Outcome:
        reached_outside = account.record.reached_outside
        _log.warning("turn_broke", reason=reason, reached_outside=reached_outside)
        account.end("broke", reason)
        if reached_outside:
            await self._give_up(run, account, f"broke after it had reached outside: {reason}")
            return Ack()
        if run.is_closed:
            return self._fall_back(account, "fenced", reason)
        return Nak(reason)

    async def _panicked(self, run: Run, account: Account, error: BaseException) -> Outcome:
        self._tell_breach(account, "unhandled_exception", repr(error))
        await self._give_up(run, account, f"panicked: {error!r}")
        account.end("panicked", repr(error))
        return Ack()

    def _fall_back(self, account: Account, name: str, reason: str) -> Defer:
        return self._refuse(
            Refusal(name, reason, is_parked=name in (BUDGET_WINDOW, AGENT_NOT_READY)), account.work.triggers
        )

    async def _give_up(self, run: Run, account: Account, detail: str) -> None:
        await self._complete(run, account, outcome="failed", detail=detail, is_certain=True)
        self._all_skipped(account, "failed", detail)

    def _all_skipped(self, account: Account, outcome: str, detail: str) -> None:
        self._tell("turn_completed", {**_of(account), "outcome": outcome, "detail": detail})
        for trigger in account.work.triggers:
            self._skipped(trigger, detail, account.work.turn_id)

    def _tell_breach(self, account: Account, kind: str, error: str) -> None:
        _log.error("turn.guard_breach", kind=kind, error=error)
        self._tell("turn.guard_breach", {**_of(account), "kind": kind, "error": error})

    async def _complete(
        self,
        run: Run,
        account: Account,
        *,
        outcome: str,
        detail: str,
        answered: Sequence[str] = (),
        is_certain: bool = False,
    ) -> None:
        """Record the turn, again while nobody answers: mail that is acked without a record would be gone.

        It ends with the tenure, or when its patience does: a ledger that stays away must not stop a company. What is
        certain whoever owns the seat, such as an outside effect, is recorded past the tenure as well: an ack then may
        not get through any more, and the record alone keeps the next owner from doing it again. It harms nobody, since
        the first record of a trigger stays.

        Args:
            is_certain: true of the mail whatever came since. So is whatever has reached outside.
        """
        admit = _always if is_certain or account.record.reached_outside else run.fence.check
        give_up_at = self._clock.elapsed() + _RECORD_PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        try:
            while not await self._ledger.record(
                self._handle,
                account.work.triggers,
                outcome=outcome,
                detail=detail,
                turn_id=account.work.turn_id,
                work_key=account.work.key,
                term=run.fence.term,
                answered=answered,
                digests=account.work.digests,
                admit=admit,
            ):
                admit()
                if self._clock.elapsed() + pause_s >= give_up_at:
                    break
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return
        except Fenced:
            pass  # a successor may have the seat since
        except Exception as error:  # noqa: BLE001 - no defect of a record brings back what the turn has done
            _log.error("dispatch_panicked", error=repr(error), exc_info=error)
        _log.error("turn_unrecorded", triggers=list(account.work.triggers), outcome=outcome)


def _of(account: Account) -> dict[str, object]:
    """Which turn an event is about."""
    work = account.work
    return {"seat": work.handle, "turn_id": work.turn_id, "work_key": work.key, "triggers": list(work.triggers)}


def _always() -> None:
    """Admits what is true whoever owns the seat."""
