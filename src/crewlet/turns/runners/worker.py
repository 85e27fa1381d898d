"""The process of one `python` seat, kept running for a tenure.

It decides when a worker is started, again after it died, and how soon; what is said to it in a turn is the runner's.
A worker that cannot load its module is tried again later and later, and says why meanwhile: the seat's mail waits in
its inbox, so that a module which is mended takes it up with nothing lost and no delivery spent.
"""

import asyncio
from collections.abc import Callable

import structlog

from crewlet.kit.lines import last_words
from crewlet.kit.supervise import Tasks
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Fenced
from crewlet.ports.programs import OutputFlood, Program, ProgramNotStarted, Programs, ProgramSpec, ProgramUnproven
from crewlet.turns.runners import protocol
from crewlet.turns.runners.conversation import how_it_ended, seen_to_end
from crewlet.turns.turn import Fence

_log = structlog.get_logger()

LOAD_LIMIT_S = 120.0
"""How long a module may take to be imported."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_UNPROVEN_PAUSE_S = 1.0
_TAIL_CHARS = 500


class _NotLoaded(Exception):
    """This process cannot work turns. Says why."""


class SeatWorker:
    """Keeps one worker process ready while the fence of its tenure is open.

    Args:
        spec: what to start.
        fence: of the tenure.
        on_change: told when `is_ready` or `trouble` changes.
    """

    def __init__(
        self,
        handle: str,
        spec: ProgramSpec,
        *,
        programs: Programs,
        clock: Clock,
        fence: Fence,
        on_change: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._spec = spec
        self._programs = programs
        self._clock = clock
        self._fence = fence
        self._on_change = on_change
        self._tasks = Tasks(f"worker of {handle}")
        self._program: Program | None = None
        self._is_ready = False
        self._has_worked = False
        self._is_working = False
        self._is_ended = False
        self.trouble: str | None = None
        """Why no worker is ready, when that is more than a start taking its time."""

    @property
    def is_ready(self) -> bool:
        """Whether a turn can start now."""
        return self._is_ready

    def start(self) -> None:
        """Begin to keep it. Called once."""
        self._tasks.start(self._keep(), "keeping")

    def take(self) -> Program | None:
        """The worker for the next turn, or None when none is ready. To be given back, or discarded."""
        if not self._is_ready:
            return None
        self._has_worked = self._is_working = True
        return self._program

    def give_back(self) -> None:
        """The turn is over, and its worker can go on."""
        self._is_working = False

    async def discard(self, program: Program) -> None:
        """End a worker with all that it started, and see it end, whatever happens to the caller. Another is started."""
        if program is self._program:
            self._change(is_ready=False, trouble=None)
        await seen_to_end(program)

    async def end(self) -> None:
        """Keep it no longer, end it, and return when nothing of it is left.

        Raises:
            ProgramUnproven: something may be left; call again.
        """
        self._is_ended = True
        await self._tasks.stop()
        self._is_ready = False
        if self._program is not None:
            await self._program.end()
            self._program = None

    async def _keep(self) -> None:
        failures = 0
        while self._may_run():
            try:
                await self._serve()
                failures = 0 if self._has_worked else failures + 1
            except (_NotLoaded, ProgramNotStarted) as error:
                failures += 1
                _log.warning("worker_not_loaded", seat=self._handle, failures=failures, error=str(error))
                self._change(is_ready=False, trouble=str(error))
            await self._bury()
            if failures:
                await self._clock.sleep(min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S))

    async def _serve(self) -> None:
        """One process, from its start to its end."""
        self._has_worked = self._is_working = False
        began = self._clock.elapsed()
        program = self._program = await self._programs.spawn(self._spec)
        await self._loaded(program)
        elapsed_ms = round(1000 * (self._clock.elapsed() - began))
        _log.info("worker_ready", seat=self._handle, pid=program.pid, elapsed_ms=elapsed_ms)
        self._change(is_ready=True, trouble=None)
        code = await program.wait()
        if not self._is_ready:
            return  # it was discarded
        _log.warning("worker_exited", seat=self._handle, pid=program.pid, code=code, is_in_turn=self._is_working)
        if self._is_working:
            self._change(is_ready=False, trouble=None)  # its turn breaks, and says why
        else:
            between = f"worker_exited: {how_it_ended(code)} between turns{_said(program)}"
            self._change(is_ready=False, trouble=between)

    async def _loaded(self, program: Program) -> None:
        """Wait until the worker has its function.

        Raises:
            _NotLoaded: it says that it cannot get it, or has ended, or is silent for too long.
        """
        answer = asyncio.create_task(self._first_word(program))
        bound = asyncio.ensure_future(self._clock.sleep(LOAD_LIMIT_S))
        try:
            await asyncio.wait((answer, bound), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _NotLoaded(f"worker_not_ready: it has not loaded within {LOAD_LIMIT_S:g} s{_said(program)}")
            answer.result()
        finally:
            answer.cancel()
            bound.cancel()
            await asyncio.gather(answer, bound, return_exceptions=True)

    async def _first_word(self, program: Program) -> None:
        try:
            async for line in program.lines():
                match protocol.parse_worker(line):
                    case protocol.ReadyLine():
                        return
                    case protocol.BrokenLine(detail):
                        raise _NotLoaded(f"worker_not_ready: {detail}")
                    case unexpected:
                        raise _NotLoaded(f"worker_not_ready: it began with {unexpected}")
        except OutputFlood as error:
            raise _NotLoaded(f"worker_not_ready: {error}") from error
        raise _NotLoaded(f"worker_not_ready: it ended while it was loading{_said(program)}")

    async def _bury(self) -> None:
        """See the last process end before another is started."""
        while (program := self._program) is not None:
            try:
                await program.end()
                self._program = None
            except ProgramUnproven as error:
                _log.error("program_still_unproven", pid=program.pid, error=str(error))
                await self._clock.sleep(_UNPROVEN_PAUSE_S)

    def _may_run(self) -> bool:
        try:
            self._fence.check()
        except Fenced:
            return False
        return True

    def _change(self, *, is_ready: bool, trouble: str | None) -> None:
        if self._is_ended:
            return
        self._is_ready, self.trouble = is_ready, trouble
        self._on_change()


def _said(program: Program) -> str:
    tail = last_words(program.error_tail()[-_TAIL_CHARS:])
    return f"; it said: {tail}" if tail else ""
