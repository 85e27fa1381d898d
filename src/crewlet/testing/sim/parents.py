"""What ends a simulated process that has stopped turning, and what its node tells of how long that may take.

A machine has a parent, which ends the node at the instant that the node itself has named; or the node's own timer
alone, by which one that stood still for too long is dead when it thaws; or neither, and then the fence is all there is.
"""

import asyncio
import enum
from collections.abc import Callable
from contextvars import Context

from crewlet.kit.beats import cadence_s
from crewlet.ports.deadline import Deadline
from crewlet.testing.sim.clock import SimClock

EARLY_S = 0.05
"""So long before the instant a parent ends its node."""

_TIMER_POLLS = 4
_ROUNDING_S = 1e-6


class Guard(enum.Enum):
    """What ends a process that has stopped turning."""

    NONE = "none"
    TIMER = "timer"
    PARENT = "parent"


def timer_s(ttl_s: float) -> float:
    """How long a process stands still at most before its timer has ended it."""
    return ttl_s + _TIMER_POLLS * cadence_s(ttl_s)


class SimDeadline(Deadline):
    """What one incarnation has told last.

    Args:
        world: the context of what goes on while the node stands still.
        on_passed: called when the instant has come; None where nobody waits for it.
    """

    def __init__(self, clock: SimClock, world: Context, on_passed: Callable[[], None] | None) -> None:
        self._clock = clock
        self._world = world
        self._on_passed = on_passed
        self._is_waiting = False
        self._instant: float | None = None

    def is_past(self, running_since: float) -> bool:
        """Whether by what was told nothing acts any more, and the node has seen the instant come.

        Args:
            running_since: so long the process has not stood still. Of one that did when the instant came, only the seat
                whose lease ran out then may not act; without a parent that is for its fence to see.
        """
        if self._instant is None:
            return True
        return self._clock.elapsed() > self._instant and running_since < self._clock.when(self._instant)

    def good_until(self, instant: float | None) -> None:
        self._instant = instant
        if not self._is_waiting:
            self._wait()

    def beat(self) -> None:
        """Whether the loops turn is read off their own beats."""

    def forget(self) -> None:
        """The process is gone."""
        self._on_passed = None

    def _wait(self) -> None:
        """Until the instant told now; those told meanwhile are looked at then."""
        if self._on_passed is None or self._instant is None:
            return
        self._is_waiting = True
        at = self._clock.when(self._instant - EARLY_S)
        asyncio.get_running_loop().call_at(at, self._look, context=self._world)

    def _look(self) -> None:
        self._is_waiting = False
        if self._on_passed is None or self._instant is None:
            return
        if self._clock.elapsed() < self._instant - EARLY_S - _ROUNDING_S:
            self._wait()
        else:
            self._on_passed()
