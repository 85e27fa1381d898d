"""Seats that are a program: one process a turn, speaking protocol v1 on its standard streams.

A program is opaque: what it does by itself cannot be seen from here. A turn whose program broke therefore counts as
having reached outside only when its record proves it, and for a program that is mail the broker accepted. Without one
the mail comes back and the program runs again, so a program with effects of its own must be able to repeat them, or
find out by the work key that it already did.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, assert_never

import structlog

from crewlet.company.model import CommandRunner
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import MailRefused
from crewlet.ports.programs import (
    OutputFlood,
    Program,
    ProgramNotStarted,
    Programs,
    ProgramSpec,
    ProgramUnproven,
)
from crewlet.turns.runners import protocol
from crewlet.turns.runners.thread import conversation_of
from crewlet.turns.turn import Turn, TurnBroke, TurnResult

_log = structlog.get_logger()

_PROGRESS_CHARS = 2_000
_PROGRESS_EVERY_S = 0.1
_TAIL_CHARS = 500

Breakage = Literal[
    "program_not_started",
    "program_bad_line",
    "program_flooded",
    "program_without_outcome",
    "program_failed",
    "program_timed_out",
]


class ProgramBroke(TurnBroke):
    """A program did not bring its turn to an outcome; `kind` names how."""

    def __init__(self, kind: Breakage, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Breakage = kind


class CommandTurns:
    """Runs turns of `command` seats.

    Args:
        programs: starts and ends them.
        clock: counts the turn's time limit.
        base_env: what every program gets of its node's environment; see `minimal_env`.
        default_cwd: the working folder of a seat that names none.
        linger_s: how long a program may take to exit after its outcome, before it is ended.
    """

    kind = "command"

    def __init__(
        self,
        programs: Programs,
        *,
        clock: Clock,
        base_env: Mapping[str, str],
        default_cwd: str | None = None,
        linger_s: float = 2.0,
    ) -> None:
        self._programs = programs
        self._clock = clock
        self._base_env = base_env
        self._default_cwd = default_cwd
        self._linger_s = linger_s

    async def run(self, turn: Turn) -> TurnResult:
        """One process from mail to outcome; see the port.

        The program and all that it started are seen to end before this returns or raises, whatever happens: while one
        of them cannot be ended, the turn is not over.
        """
        command = turn.seat.runner
        if not isinstance(command, CommandRunner):
            raise Misuse(f"{turn.seat.handle} is not a command seat")
        turn.fence.check()
        conversation = _Conversation(turn, self._clock)
        try:
            program = await self._programs.spawn(self._spec(turn, command))
        except ProgramNotStarted as error:
            raise ProgramBroke("program_not_started", str(error)) from error
        try:
            result = await self._talk(program, conversation, command.timeout_s)
        finally:
            await _seen_to_end(_end(program))
        return result

    def _spec(self, turn: Turn, command: CommandRunner) -> ProgramSpec:
        term = turn.fence.term
        own = {
            "CREWLET_SEAT": turn.seat.handle,
            "CREWLET_TURN_ID": turn.turn_id,
            "CREWLET_TERM_RESOURCE": term.resource,
            "CREWLET_TERM_OWNER": term.owner,
            "CREWLET_TERM_EPOCH": str(term.epoch),
        }
        env = {**self._base_env, **command.env, **own}
        return ProgramSpec(command.command, env, command.cwd or self._default_cwd)

    async def _talk(self, program: Program, conversation: "_Conversation", timeout_s: float | None) -> TurnResult:
        tasks: dict[str, asyncio.Task[Any]] = {
            "feed": asyncio.create_task(program.write_line(protocol.start_line(conversation.turn))),
            "listen": asyncio.create_task(conversation.listen(program)),
            "exit": asyncio.create_task(program.wait()),
        }
        if timeout_s is not None:
            tasks["limit"] = asyncio.create_task(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait((tasks["listen"], tasks["exit"], *_if_there(tasks, "limit")), return_when=_FIRST)
            if tasks["exit"].done() and not tasks["listen"].done():
                # Whatever it wrote is in the pipe. What it left running would hold that open, and goes now.
                await _seen_to_end(_end(program))
                await asyncio.wait((tasks["listen"], *_if_there(tasks, "limit")), return_when=_FIRST)
            if not tasks["listen"].done():
                raise conversation.broke("program_timed_out", f"no outcome within {timeout_s:g} s", program)
            result: TurnResult | None = tasks["listen"].result()
            if result is None:
                raise await self._without_outcome(program, conversation, tasks)
            await self._let_exit(program, tasks["exit"])
            return result
        finally:
            await _stop(tasks)

    async def _without_outcome(
        self, program: Program, conversation: "_Conversation", tasks: "dict[str, asyncio.Task[Any]]"
    ) -> ProgramBroke:
        """It closed its output. Name what happened, once it has exited or had its time to."""
        await self._wait_briefly(tasks["exit"])
        if not tasks["exit"].done():
            return conversation.broke("program_without_outcome", "it closed its output and went on running", program)
        code: int = tasks["exit"].result()
        if code == 0:
            return conversation.broke("program_without_outcome", "it exited without an outcome", program)
        how = f"it was ended by signal {-code}" if code < 0 else f"it exited with code {code}"
        return conversation.broke("program_failed", how, program)

    async def _let_exit(self, program: Program, exited: "asyncio.Task[int]") -> None:
        """An outcome stands, however the program ends after it."""
        program.close_input()
        await self._wait_briefly(exited)
        if not exited.done():
            _log.warning("program_lingered", pid=program.pid, linger_s=self._linger_s)
        elif exited.result() != 0:
            _log.warning("program_exit_after_outcome", pid=program.pid, code=exited.result())

    async def _wait_briefly(self, exited: "asyncio.Task[int]") -> None:
        pause = asyncio.create_task(self._clock.sleep(self._linger_s))
        try:
            await asyncio.wait((exited, pause), return_when=_FIRST)
        finally:
            pause.cancel()


def minimal_env(environment: Mapping[str, str]) -> dict[str, str]:
    """What every program gets of its node's environment: where programs are, a home, and a language."""
    return {name: environment[name] for name in ("PATH", "HOME", "LANG") if name in environment}


class _Conversation:
    """What one program says, and what it is answered."""

    def __init__(self, turn: Turn, clock: Clock) -> None:
        self.turn = turn
        self._clock = clock
        self._shown_at: float | None = None

    async def listen(self, program: Program) -> TurnResult | None:
        """Serve the program until its outcome. None when its output ended without one."""
        try:
            async for line in program.lines():
                message = protocol.parse(line, conversation=conversation_of(self.turn))
                match message:
                    case protocol.ProgressLine(text):
                        self._show(text)
                    case protocol.AnsweredLine(chat_message):
                        self.turn.answered(chat_message)
                    case protocol.SendLine(_) as request:
                        await program.write_line(await self._answer(request))
                    case protocol.OutcomeLine(result):
                        return result
                    case protocol.BadLine(reason):
                        raise self.broke("program_bad_line", reason, program)
                    case _:
                        assert_never(message)
        except OutputFlood as error:
            raise self.broke("program_flooded", str(error), program) from error
        return None

    def broke(self, kind: Breakage, detail: str, program: Program) -> ProgramBroke:
        tail = program.error_tail().strip()[-_TAIL_CHARS:]
        said = f"{detail}; it said: {tail}" if tail else detail
        return ProgramBroke(kind, said)

    def _show(self, text: str) -> None:
        """Pass a line on to people, unless it comes on the heels of another: nobody reads a flood."""
        now = self._clock.elapsed()
        if self._shown_at is None or now - self._shown_at >= _PROGRESS_EVERY_S:
            self._shown_at = now
            self.turn.progress(" ".join(text.split())[:_PROGRESS_CHARS])

    async def _answer(self, request: protocol.SendLine) -> bytes:
        self.turn.fence.check()
        try:
            message_id = await self.turn.send(request.mail)
        except (UnknownSeat, MailRefused) as refused:
            return protocol.refused_line(str(refused))
        return protocol.sent_line(message_id)


async def _end(program: Program) -> None:
    while True:
        try:
            return await program.end()
        except ProgramUnproven as error:
            # A second copy must not start beside what is left, so the turn stays open and its seat stays here.
            _log.error("program_still_unproven", pid=program.pid, error=str(error))


async def _seen_to_end(ending: Coroutine[Any, Any, None]) -> None:
    """Wait for the proof through any number of cancellations, and let those go on afterwards."""
    task = asyncio.ensure_future(ending)
    interrupted = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            interrupted = True
    task.result()
    if interrupted:
        raise asyncio.CancelledError


async def _stop(tasks: "dict[str, asyncio.Task[Any]]") -> None:
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


def _if_there(tasks: "dict[str, asyncio.Task[Any]]", name: str) -> "tuple[asyncio.Task[Any], ...]":
    return (tasks[name],) if name in tasks else ()


_FIRST = asyncio.FIRST_COMPLETED
