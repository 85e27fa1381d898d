"""How a turn runs and comes to its end, whoever wants it ended meanwhile."""

import asyncio
from contextlib import suppress

from crewlet.kit.supervise import see_through
from crewlet.ports.mail import Outcome, Settling
from crewlet.turns.account import Account
from crewlet.turns.endings import Endings
from crewlet.turns.guards import check_depth
from crewlet.turns.run import Run
from crewlet.turns.turn import Runner, Turn, TurnResult


class Course:
    """The turns of one seat. A turn and the record of its ending are one task; the next may run beside that record."""

    def __init__(self, handle: str, runner: Runner, endings: Endings) -> None:
        self._handle = handle
        self._runner = runner
        self._endings = endings

    async def take(self, run: Run, account: Account, turn: Turn) -> Outcome | Settling:
        """Run a turn until it has ended, by itself or because its fence closed. It is never left running.

        Returns:
            What becomes of its mail; of a turn that ended well, when its record is written.

        Cancellation: the turn is ended, and seen to end, before it goes on.
        """
        task = run.task = asyncio.create_task(self._work(run, account, turn), name=f"turn {self._handle}")

        def close(reason: str) -> None:
            run.stop_reason = run.stop_reason or reason or "the fence closed"
            run.end()

        forget = run.fence.on_close(close)
        try:
            await run.ended.wait()
        except asyncio.CancelledError:
            # Our own, which goes on when the turn is seen to end.
            if run.ended.is_set():
                self._endings.record_meanwhile(task)
                raise
            run.is_cut_short = True
            run.end()
            with suppress(Exception):
                await see_through(task, task.cancel)
            raise
        finally:
            forget()
            run.ended.set()  # one that never began has not said so itself
        if task.done():
            return task.result()
        return self._endings.record_meanwhile(task) if run.is_well else await task

    async def _work(self, run: Run, account: Account, turn: Turn) -> Outcome:
        """Run the turn, and find out what becomes of its mail."""
        run.is_begun = True
        result: TurnResult | BaseException = asyncio.CancelledError()
        try:
            if not run.is_ending:
                turn.fence.check()
                check_depth(turn.mail)
                result = await self._runner.run(turn)
                run.is_well = True
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            run.ended.set()
            raise
        except BaseException as error:  # noqa: BLE001 - the table of endings tells them apart
            result = error
        if run.task is not None and run.task.cancelling():
            # It may have ended in the very step in which it was cancelled: what follows must not meet that.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        run.ended.set()
        if run.is_cut_short:
            await self._endings.record_last(run, account)
            raise asyncio.CancelledError
        try:
            return await self._endings.settle(run, account, result)
        except Exception as error:  # noqa: BLE001 - mail whose turn has run does not come back for a defect of ours
            return await self._endings.dispatch_panicked(run, account, error)
