"""Seats that are a Python function, called in a process of the seat's own: `crewlet.agent` is what it works with.

The process is started with the tenure and ends with it, so that a module is loaded once and not for each turn. What
blocks it, holds its interpreter lock or ends it harms this seat alone. A turn that ends in any other way than by its
function's return takes the process with it: nothing of a turn goes on after it is over.
"""

import sys
from collections.abc import Callable, Mapping

import structlog

from crewlet.company.model import PythonRunner, Seat
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Misuse
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec
from crewlet.turns.runners import protocol
from crewlet.turns.runners.command import no_variable, own_env, term_env
from crewlet.turns.runners.conversation import Conversation, ProgramBroke, converse, exit_code, how_it_ended
from crewlet.turns.runners.worker import SeatWorker
from crewlet.turns.turn import AgentNotReady, Fence, Turn, TurnResult

WORKER_MODULE = "crewlet.agent.worker"
_EXIT_WITHIN_S = 2.0

_log = structlog.get_logger()


class PythonTurns:
    """Runs turns of one `python` seat, for one tenure.

    Args:
        seat: whose.
        programs: starts and ends its worker.
        clock: counts time limits and pauses.
        base_env: what every program gets of its node's environment; see `minimal_env`.
        variable: the value of a variable of the node by its name, for the references in the seat's `env`.
    """

    kind = "python"

    def __init__(
        self,
        seat: Seat,
        programs: Programs,
        *,
        clock: Clock,
        base_env: Mapping[str, str],
        variable: Callable[[str], str | None] = no_variable,
    ) -> None:
        if not isinstance(seat.runner, PythonRunner):
            raise Misuse(f"{seat.handle} is not a python seat")
        self._handle = seat.handle
        self._runner = seat.runner
        self._programs = programs
        self._clock = clock
        self._base_env = base_env
        self._variable = variable
        self._unset: str | None = None
        self._worker: SeatWorker | None = None

    @property
    def is_ready(self) -> bool:
        return self._worker is not None and self._worker.is_ready

    @property
    def trouble(self) -> str | None:
        return self._worker.trouble if self._worker is not None else self._unset

    def start(self, fence: Fence, on_change: Callable[[], None]) -> None:
        """Have a worker started; see the port."""
        if self._worker is not None:
            raise Misuse(f"the worker of {self._handle} was started before")
        try:
            spec = self._spec(fence)
        except ProgramNotStarted as error:
            self._unset = f"{self._runner.target}: {error}"
            _log.error("worker_not_started", seat=self._handle, error=self._unset)
            return
        self._worker = SeatWorker(
            self._handle,
            spec,
            programs=self._programs,
            clock=self._clock,
            fence=fence,
            on_change=on_change,
        )
        self._worker.start()

    async def end(self) -> None:
        """End the worker; see the port."""
        if self._worker is not None:
            await self._worker.end()

    async def run(self, turn: Turn) -> TurnResult:
        """One call of the function; see the port."""
        turn.fence.check()
        worker = self._worker
        program = worker.take() if worker is not None else None
        if worker is None or program is None:
            raise AgentNotReady(self.trouble or "it is being started")
        conversation = Conversation(turn, self._clock, _parse)
        is_sound = False
        try:
            result = await self._converse(program, conversation)
            is_sound = True
        except ProgramBroke as broke:
            is_sound = broke.kind == "function_raised"
            raise
        finally:
            if is_sound:
                worker.give_back()
            else:
                await worker.discard(program)
        return result

    async def _converse(self, program: Program, conversation: Conversation) -> TurnResult:
        limit_s = self._runner.timeout_s
        result = await converse(program, conversation, clock=self._clock, timeout_s=limit_s)
        if result is None:
            code = await exit_code(program, clock=self._clock, within_s=_EXIT_WITHIN_S)
            how = how_it_ended(code) if code is not None else "it closed its end of the protocol"
            raise conversation.broke("worker_exited", f"{how} in the middle of the turn", program)
        return result

    def _spec(self, fence: Fence) -> ProgramSpec:
        env = {**self._base_env, **own_env(self._runner.env, self._variable), **term_env(fence.term)}
        argv = (sys.executable, "-P", "-m", WORKER_MODULE, self._runner.target)
        # Each turn's output has its bound; the worker's whole life has none.
        return ProgramSpec(argv, env, self._runner.path, max_output_bytes=sys.maxsize)


def _parse(line: bytes, conversation: str) -> protocol.WorkerLine:
    return protocol.parse_worker(line, conversation=conversation)
