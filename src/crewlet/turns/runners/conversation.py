"""What a program and its node say to each other in one turn, and the names of the ways in which that can break.

Programs of `command` seats and workers of `python` seats are served alike; how a process comes and goes is their
runners'.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, assert_never

import structlog

from crewlet.kit.lines import last_words
from crewlet.kit.supervise import see_through
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.clock import Clock
from crewlet.ports.mail import MailRefused
from crewlet.ports.programs import OutputFlood, Program, ProgramUnproven
from crewlet.ports.tools import ToolAnswer
from crewlet.turns.guards import Rounds
from crewlet.turns.runners import protocol
from crewlet.turns.runners.thread import conversation_of
from crewlet.turns.turn import Turn, TurnBroke, TurnResult

_log = structlog.get_logger()

MAX_TURN_BYTES = 16_777_216
MOST_ROUNDS = 1_000
"""A program that accounts for more rounds in one turn goes in circles; as many as an `llm` seat may ask for."""
_PROGRESS_CHARS = 2_000
_PROGRESS_EVERY_S = 0.1
_TAIL_CHARS = 500

Breakage = Literal[
    "program_bad_line",
    "program_unknown_version",
    "program_flooded",
    "program_without_outcome",
    "program_failed",
    "program_timed_out",
    "worker_exited",
    "function_raised",
    "function_exited",
]


class ProgramBroke(TurnBroke):
    """A program did not bring its turn to an outcome; `kind` names how."""

    def __init__(self, kind: Breakage, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Breakage = kind


class Conversation:
    """What one program says in one turn, and what it is answered. Requests are served one at a time, in order.

    Args:
        parse: reads a line, when told the conversation of the turn's mail.
    """

    def __init__(self, turn: Turn, clock: Clock, parse: Callable[[bytes, str], protocol.WorkerLine]) -> None:
        self.turn = turn
        self._clock = clock
        self._parse = parse
        self._shown_at: float | None = None
        self._rounds = Rounds(MOST_ROUNDS)
        self._error_bytes = 0

    def begin(self, program: Program) -> bytes:
        """The line that begins it. What the program wrote to standard error before is none of this turn's."""
        self._error_bytes = program.error_bytes()
        return protocol.start_line(self.turn)

    async def listen(self, program: Program) -> TurnResult | None:
        """Serve the program until its outcome. None when its output ended without one.

        Raises:
            ProgramBroke: it said what no program says.
            Fenced, GuardBreached, Unavailable: out of what it asked for.
        """
        thread = conversation_of(self.turn)
        total = 0
        try:
            async for line in program.lines():
                total += len(line) + 1
                if total > MAX_TURN_BYTES:
                    raise OutputFlood(f"more than {MAX_TURN_BYTES} bytes of output")
                result = await self._serve(self._parse(line, thread), program)
                if result is not None:
                    return result
        except OutputFlood as error:
            raise self.broke("program_flooded", str(error), program) from error
        return None

    async def _serve(self, message: protocol.WorkerLine, program: Program) -> TurnResult | None:
        match message:
            case protocol.ProgressLine(text):
                self._show(text)
            case protocol.AnsweredLine(chat_message):
                self.turn.answered(chat_message)
            case protocol.SendLine() | protocol.CallLine() | protocol.CheckLine():
                await program.write_line(await self._answer(message))
            case protocol.UsageLine():
                await self._spent(message)
            case protocol.VersionLine(version):
                if version != protocol.VERSION:
                    problem = f"it speaks version {version} of the protocol, this node version {protocol.VERSION}"
                    raise self.broke("program_unknown_version", problem, program)
            case protocol.OutcomeLine(result):
                return result
            case protocol.RaisedLine(detail, ends):
                raise ProgramBroke("function_exited" if ends else "function_raised", detail)
            case protocol.BadLine(reason):
                raise self.broke("program_bad_line", reason, program)
            case protocol.ReadyLine() | protocol.BrokenLine():
                raise self.broke("program_bad_line", "it began anew in the middle of a turn", program)
            case _:
                assert_never(message)
        return None

    def broke(self, kind: Breakage, detail: str, program: Program) -> ProgramBroke:
        """The breakage, with the last of what the program wrote to standard error in this turn."""
        tail = last_words(program.error_tail(self._error_bytes)[-_TAIL_CHARS:])
        return ProgramBroke(kind, f"{detail}; it said: {tail}" if tail else detail)

    def _show(self, text: str) -> None:
        """Pass a line on to people, unless it comes on the heels of another: nobody reads a flood."""
        now = self._clock.elapsed()
        if self._shown_at is None or now - self._shown_at >= _PROGRESS_EVERY_S:
            self._shown_at = now
            self.turn.progress(" ".join(text.split())[:_PROGRESS_CHARS])

    async def _answer(self, request: protocol.SendLine | protocol.CallLine | protocol.CheckLine) -> bytes:
        self.turn.fence.check()
        match request:
            case protocol.SendLine(mail):
                try:
                    return protocol.sent_line(await self.turn.send(mail))
                except (UnknownSeat, MailRefused) as refused:
                    return protocol.refused_line(str(refused))
            case protocol.CallLine(tool, arguments):
                return protocol.result_line(await self._call(tool, arguments))
            case protocol.CheckLine():
                return protocol.term_line(self.turn.fence)
            case _:
                assert_never(request)

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        if self.turn.tools is None:
            return ToolAnswer(f"there is no tool {tool!r}; this seat has none", is_error=True)
        return await self.turn.tools.call(tool, arguments)

    async def _spent(self, line: protocol.UsageLine) -> None:
        """A program says of a round only that it is over; what it cost is counted whether or not it might begin."""
        number = self._rounds.done + 1
        try:
            self._rounds.begin()
            await self.turn.begin_round(number)
        finally:
            await self.turn.usage(line.of_round(number))


async def converse(
    program: Program, conversation: Conversation, *, clock: Clock, timeout_s: float | None
) -> TurnResult | None:
    """Hand a program its turn and serve it until its outcome, for so long at most.

    Returns:
        Its outcome, or None when its output ended without one. It may still run in either case.

    Raises:
        ProgramBroke: it took too long, or said what no program says.
        Fenced, GuardBreached, Unavailable: out of what it asked for.
    """
    listen = asyncio.create_task(conversation.listen(program))
    exited = asyncio.create_task(program.wait())
    tasks: list[asyncio.Task[Any]] = [listen, exited]
    bounds: list[asyncio.Future[None]] = []
    if timeout_s is not None:
        bounds = [asyncio.ensure_future(clock.sleep(timeout_s))]
    feed = asyncio.create_task(program.write_line(conversation.begin(program)))
    try:
        await asyncio.wait((listen, exited, *bounds), return_when=asyncio.FIRST_COMPLETED)
        if exited.done() and not listen.done():
            # Whatever it wrote is in the pipe. What it left running would hold that open, and goes now.
            await seen_to_end(program)
            await asyncio.wait((listen, *bounds), return_when=asyncio.FIRST_COMPLETED)
        if not listen.done():
            raise conversation.broke("program_timed_out", f"no outcome within {timeout_s:g} s", program)
        return listen.result()
    finally:
        for task in (*tasks, *bounds, feed):
            task.cancel()
        await asyncio.gather(*tasks, *bounds, feed, return_exceptions=True)


async def seen_to_end(program: Program) -> None:
    """End a program, and wait for the proof through any number of cancellations, which go on afterwards."""
    await see_through(asyncio.ensure_future(_end(program)))


async def exit_code(program: Program, *, clock: Clock, within_s: float) -> int | None:
    """The program's exit code, or None when it runs on for longer."""
    exited = asyncio.create_task(program.wait())
    pause = asyncio.ensure_future(clock.sleep(within_s))
    try:
        await asyncio.wait((exited, pause), return_when=asyncio.FIRST_COMPLETED)
        return exited.result() if exited.done() else None
    finally:
        exited.cancel()
        pause.cancel()


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"it was ended by signal {-code}" if code < 0 else f"it exited with code {code}"


async def _end(program: Program) -> None:
    while True:
        try:
            return await program.end()
        except ProgramUnproven as error:
            # A second copy must not start beside what is left, so the turn stays open and its seat stays here.
            _log.error("program_still_unproven", pid=program.pid, error=str(error))
