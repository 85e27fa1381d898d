"""Questions of a duty that are waited for only so long, so that a silent broker does not look like a stuck duty."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from crewlet.kit.supervise import Tasks
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable

T = TypeVar("T")


def _nothing() -> None:
    return None


class Asking:
    """Asks for half a lease TTL at most, and says after each answer that the tick gets on: the loop that asks is
    watched for a whole TTL.

    Args:
        ttl_s: the lease TTL.

    Attributes:
        turned: what hears that the tick gets on. Each tick sets its own.
    """

    def __init__(self, ttl_s: float, clock: Clock, tasks: Tasks | None = None) -> None:
        self._within_s = ttl_s / 2
        self._clock = clock
        self._tasks = tasks or Tasks("questions of duties")
        self.turned: Callable[[], None] = _nothing

    async def __call__(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The answer.

        Raises:
            Unavailable: there was none by then. What was asked for may happen all the same.
        """
        try:
            return await self._tasks.within(work, self._within_s, self._clock.sleep, what)
        except TimeoutError as error:
            raise Unavailable(f"the broker did not answer in time: {what}") from error
        finally:
            self.turned()
