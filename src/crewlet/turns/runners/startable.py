"""Whether what a seat's turns begin with can be started here, kept an eye on while it cannot.

It decides when mail waits for a program, a library or a key that is missing, and how soon it is looked for again. While
the seat's inbox is held for it no delivery is spent, and what appears takes the mail up by itself.
"""

from collections.abc import Awaitable, Callable

import structlog

from crewlet.kit.supervise import Tasks
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Fenced
from crewlet.ports.programs import ProgramNotStarted
from crewlet.turns.turn import AgentNotReady, Fence

_log = structlog.get_logger()

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_LONGEST_PAUSE_AFTER_START_S = 3600.0
"""A program that seems to be there and yet does not start is only tried by handing it mail, which costs a delivery."""


class Startable:
    """Looks for one seat's agent at the beginning of a tenure, and again after each start that failed.

    Args:
        look: returns when it is there, as far as can be seen without a turn; else raises `ProgramNotStarted` or
            `AgentNotReady`, which say what is missing.
        what: `program`, or what else it is, for the log.
        fence: of the tenure; nothing is looked for after it has closed.
        on_change: told when `is_ready` or `trouble` changes.
    """

    def __init__(
        self,
        handle: str,
        look: Callable[[], Awaitable[object]],
        *,
        clock: Clock,
        fence: Fence,
        on_change: Callable[[], None],
        what: str = "program",
    ) -> None:
        self._handle = handle
        self._look = look
        self._what = what
        self._clock = clock
        self._fence = fence
        self._on_change = on_change
        self._tasks = Tasks(f"{what} of {handle}")
        self._failed_starts = 0
        self._is_ended = False
        self.is_ready = False
        self.trouble: str | None = None
        """Why it cannot be started; None while it can, or nobody has looked yet."""

    def look(self) -> None:
        """Begin to look for it, until it is there."""
        self._tasks.start(self._until_there(), "looking")

    def started(self) -> None:
        """It could be started."""
        self._failed_starts = 0

    def failed(self, why: str) -> None:
        """It could not be started, though it had seemed to be there."""
        if self.is_ready:
            self._failed_starts += 1
            self._change(is_ready=False, trouble=why)
            self._tasks.start(self._again(), "looking again")

    async def end(self) -> None:
        """Look for it no longer."""
        self._is_ended = True
        self.is_ready = False
        await self._tasks.stop()

    async def _again(self) -> None:
        await self._clock.sleep(_pause_s(self._failed_starts, _LONGEST_PAUSE_AFTER_START_S))
        await self._until_there()

    async def _until_there(self) -> None:
        looks = 0
        while self._may_look():
            try:
                await self._look()
            except (ProgramNotStarted, AgentNotReady) as missing:
                looks += 1
                if self.trouble != str(missing):
                    _log.warning(f"{self._what}_not_startable", seat=self._handle, error=str(missing))
                    self._change(is_ready=False, trouble=str(missing))
                await self._clock.sleep(_pause_s(looks, _LONGEST_PAUSE_S))
            else:
                if self.trouble is not None:
                    _log.info(f"{self._what}_startable", seat=self._handle)
                self._change(is_ready=True, trouble=None)
                return

    def _may_look(self) -> bool:
        try:
            self._fence.check()
        except Fenced:
            return False
        return True

    def _change(self, *, is_ready: bool, trouble: str | None) -> None:
        if not self._is_ended:
            self.is_ready, self.trouble = is_ready, trouble
            self._on_change()


def _pause_s(failures: int, longest_s: float) -> float:
    return min(_FIRST_PAUSE_S * 2.0 ** min(failures - 1, 20), longest_s)
