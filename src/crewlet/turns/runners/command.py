"""Seats that are a program: one process a turn, speaking protocol v1 on its standard streams.

A program is opaque: what it does by itself cannot be seen from here. A turn whose program broke therefore counts as
having reached outside only when its record proves it, and for a program that is a call of one of its seat's tools.
Without one the mail comes back and the program runs again, so a program with effects of its own must be able to repeat
them, or find out by the work key that it already did.
"""

from collections.abc import Callable, Mapping

import structlog

from crewlet.company.model import CommandRunner, Seat
from crewlet.kit.references import NotAReference, UnsetVariable, substitute
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Misuse
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec
from crewlet.ports.term import Term
from crewlet.turns.runners import protocol
from crewlet.turns.runners.conversation import (
    Conversation,
    ProgramBroke,
    converse,
    exit_code,
    how_it_ended,
    seen_to_end,
)
from crewlet.turns.runners.startable import Startable
from crewlet.turns.turn import AgentNotReady, Fence, Turn, TurnResult

__all__ = ["CommandTurns", "ProgramBroke", "minimal_env", "term_env"]

_log = structlog.get_logger()


def no_variable(name: str) -> None:
    """The variables of a node that has none to give."""
    del name


class CommandTurns:
    """Runs turns of one `command` seat, for one tenure.

    Args:
        seat: whose.
        programs: starts and ends them.
        clock: counts the turn's time limit.
        base_env: what every program gets of its node's environment; see `minimal_env`.
        default_cwd: the working folder of a seat that names none.
        variable: the value of a variable of the node by its name, for the references in a seat's `env`.
        linger_s: how long a program may take to exit after its outcome, before it is ended.
    """

    kind = "command"

    def __init__(
        self,
        seat: Seat,
        programs: Programs,
        *,
        clock: Clock,
        base_env: Mapping[str, str],
        default_cwd: str | None = None,
        variable: Callable[[str], str | None] = no_variable,
        linger_s: float = 2.0,
    ) -> None:
        if not isinstance(seat.runner, CommandRunner):
            raise Misuse(f"{seat.handle} is not a command seat")
        self._command = seat.runner
        self._programs = programs
        self._clock = clock
        self._base_env = base_env
        self._default_cwd = default_cwd
        self._variable = variable
        self._linger_s = linger_s
        self._startable = Startable(seat.handle, clock=clock)

    @property
    def is_ready(self) -> bool:
        return self._startable.is_ready

    @property
    def trouble(self) -> str | None:
        return self._startable.trouble

    def start(self, fence: Fence, on_change: Callable[[], None]) -> None:
        """Have the program looked for; see the port."""
        self._startable.start(lambda: self._look(fence.term), fence, on_change)

    async def end(self) -> None:
        """Look for it no longer; see the port. What a turn started has ended with the turn."""
        await self._startable.end()

    async def run(self, turn: Turn) -> TurnResult:
        """One process from mail to outcome; see the port.

        The program and all that it started are seen to end before this returns or raises, whatever happens: while one
        of them cannot be ended, the turn is not over.
        """
        turn.fence.check()
        conversation = Conversation(turn, self._clock, _parse)
        program = await self._started(turn)
        try:
            result = await converse(program, conversation, clock=self._clock, timeout_s=self._command.timeout_s)
            if result is None:
                raise await self._without_outcome(program, conversation)
            await self._let_exit(program)
        finally:
            await seen_to_end(program)
        return result

    async def _started(self, turn: Turn) -> Program:
        try:
            program = await self._programs.spawn(self._spec(turn.fence.term, {"CREWLET_TURN_ID": turn.turn_id}))
        except ProgramNotStarted as error:
            self._startable.failed(str(error))
            raise AgentNotReady(str(error)) from error
        self._startable.started()
        return program

    async def _look(self, term: Term) -> None:
        await self._programs.look(self._spec(term))

    def _spec(self, term: Term, of_turn: Mapping[str, str] | None = None) -> ProgramSpec:
        own = own_env(self._command.env, self._variable)
        env = {**self._base_env, **own, **(of_turn or {}), **term_env(term)}
        return ProgramSpec(self._command.command, env, self._command.cwd or self._default_cwd)

    async def _without_outcome(self, program: Program, conversation: Conversation) -> ProgramBroke:
        """It closed its output. Name what happened, once it has exited or had its time to."""
        code = await exit_code(program, clock=self._clock, within_s=self._linger_s)
        match code:
            case None:
                problem = "it closed its output and went on running"
            case 0:
                problem = "it exited without an outcome"
            case _:
                return conversation.broke("program_failed", how_it_ended(code), program)
        return conversation.broke("program_without_outcome", problem, program)

    async def _let_exit(self, program: Program) -> None:
        """An outcome stands, however the program ends after it."""
        program.close_input()
        code = await exit_code(program, clock=self._clock, within_s=self._linger_s)
        if code is None:
            _log.warning("program_lingered", pid=program.pid, linger_s=self._linger_s)
        elif code != 0:
            _log.warning("program_exit_after_outcome", pid=program.pid, code=code)


def own_env(env: Mapping[str, str], variable: Callable[[str], str | None]) -> dict[str, str]:
    """A seat's own variables, with what they refer to filled in.

    Raises:
        ProgramNotStarted: one of them is not set on this node.
    """
    try:
        return {name: substitute(text, variable) for name, text in env.items()}
    except UnsetVariable as unset:
        raise ProgramNotStarted(f"it needs the variable {unset}, which is not set on this node") from None
    except NotAReference as wrong:
        raise ProgramNotStarted(f"its env has {str(wrong)!r}, which is not a reference to a variable") from None


def minimal_env(environment: Mapping[str, str]) -> dict[str, str]:
    """What every program gets of its node's environment: where programs are, a home, and a language."""
    return {name: environment[name] for name in ("PATH", "HOME", "LANG") if name in environment}


def term_env(term: Term) -> dict[str, str]:
    """The variables that tell a program whose seat it works for, and under which tenure."""
    return {
        "CREWLET_SEAT": term.resource.partition(":")[2],
        "CREWLET_TERM_RESOURCE": term.resource,
        "CREWLET_TERM_OWNER": term.owner,
        "CREWLET_TERM_EPOCH": str(term.epoch),
    }


def _parse(line: bytes, conversation: str) -> protocol.WorkerLine:
    return protocol.parse(line, conversation=conversation)
