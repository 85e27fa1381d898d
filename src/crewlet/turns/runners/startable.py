"""Whether what a seat's turns begin with can be started here, kept an eye on while it cannot.

It decides when mail waits for a program, a library or a key that is missing, and how soon it is looked for again. While
the seat's inbox is held for it no delivery is spent, and what appears takes the mail up by itself.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

import structlog

from crewlet.kit.supervise import Tasks
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Fenced, Misuse
from crewlet.ports.programs import ProgramNotStarted
from crewlet.turns.turn import AgentNotReady, Fence

_log = structlog.get_logger()

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_LONGEST_PAUSE_AFTER_START_S = 3600.0
"""A program that seems to be there and yet does not start is only tried by handing it mail, which costs a delivery."""


class Startable:
    """Looks for one seat's agent from the beginning of a tenure, and again after each start that failed.

    Args:
        what: `program`, or what else it is, for the log.
    """

    def __init__(self, handle: str, *, clock: Clock, what: str = "program") -> None:
        self._handle = handle
        self._what = what
        self._clock = clock
        self._tasks = Tasks(f"{what} of {handle}")
        self._looking: Callable[[], Coroutine[Any, Any, None]] | None = None
        # A start fails in a turn, whose names are not those of what is looked for after it.
        self._context = copy_context()
        self._on_change: Callable[[], None] = lambda: None
        self._failed_starts = 0
        self._is_ended = False
        self.is_ready = False
        self.trouble: str | None = None
        """Why it cannot be started; None while it can, or nobody has looked yet."""

    def start(self, look: Callable[[], Awaitable[object]], fence: Fence, on_change: Callable[[], None]) -> None:
        """Begin to look for it, until it is there.

        Args:
            look: returns when it is there, as far as can be seen without a turn; else raises `ProgramNotStarted` or
                `AgentNotReady`, which say what is missing.
            fence: of the tenure; nothing is looked for after it has closed.
            on_change: told when `is_ready` or `trouble` changes.

        Raises:
            Misuse: it was started before.
        """
        if self._looking is not None:
            raise Misuse(f"the {self._what} of {self._handle} was looked for before")
        self._on_change = on_change
        self._looking = partial(self._until_there, look, fence)
        self._tasks.start(self._looking(), "looking")

    def started(self) -> None:
        """It could be started."""
        self._failed_starts = 0

    def failed(self, why: str) -> None:
        """It could not be started, though it had seemed to be there."""
        if self.is_ready and self._looking is not None:
            self._failed_starts += 1
            self._change(is_ready=False, trouble=why)
            self._context.run(self._tasks.start, self._again(self._looking), "looking again")

    async def end(self) -> None:
        """Look for it no longer."""
        self._is_ended = True
        self.is_ready = False
        await self._tasks.stop()

    async def _again(self, looking: Callable[[], Awaitable[None]]) -> None:
        await self._clock.sleep(_pause_s(self._failed_starts, _LONGEST_PAUSE_AFTER_START_S))
        await looking()

    async def _until_there(self, look: Callable[[], Awaitable[object]], fence: Fence) -> None:
        looks = 0
        while _is_open(fence):
            try:
                await look()
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

    def _change(self, *, is_ready: bool, trouble: str | None) -> None:
        if not self._is_ended:
            self.is_ready, self.trouble = is_ready, trouble
            self._on_change()


def _is_open(fence: Fence) -> bool:
    try:
        fence.check()
    except Fenced:
        return False
    return True


def _pause_s(failures: int, longest_s: float) -> float:
    return min(_FIRST_PAUSE_S * 2.0 ** min(failures - 1, 20), longest_s)
