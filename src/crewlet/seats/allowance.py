"""The one time budget that all store calls of a drain share."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from crewlet.kit.supervise import Tasks
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable

T = TypeVar("T")


class Allowance:
    """So many seconds, charged only while at least one call is in flight, and once for calls side by side.

    A call that finds nothing left is still sent: it is waited for only as long as `courtesy_s`.
    """

    def __init__(self, tasks: Tasks, clock: Clock, seconds: float, *, courtesy_s: float = 0.02) -> None:
        self._tasks = tasks
        self._clock = clock
        self._left_s = seconds
        self._courtesy_s = courtesy_s
        self._in_flight = 0
        self._charged_until = 0.0

    @property
    def left_s(self) -> float:
        """What is left now, 0 or more."""
        running = self._clock.elapsed() - self._charged_until if self._in_flight else 0.0
        return max(0.0, self._left_s - running)

    def give_up(self) -> None:
        """Nothing is left from now on, whatever was not used."""
        self._settle()
        self._left_s = 0.0

    async def spend(self, work: Coroutine[Any, Any, T], name: str, *, at_most_s: float | None = None) -> T:
        """Run one store call within what is left, and within `at_most_s` if given.

        Raises:
            Unavailable: it did not answer in that time, or said so itself. The call was cancelled.
        """
        bound_s = self.left_s if at_most_s is None else min(self.left_s, at_most_s)
        self._settle()
        self._in_flight += 1
        try:
            return await self._tasks.within(work, max(bound_s, self._courtesy_s), self._clock.sleep, name)
        except TimeoutError as error:
            raise Unavailable(f"{name}: no answer within what the drain allows") from error
        finally:
            self._settle()
            self._in_flight -= 1

    def _settle(self) -> None:
        now = self._clock.elapsed()
        if self._in_flight:
            self._left_s = max(0.0, self._left_s - (now - self._charged_until))
        self._charged_until = now
