"""May a running turn of this tenure still act."""

from collections.abc import Callable

from crewlet.kit.latch import Latch
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Fenced
from crewlet.ports.term import Term


class SeatFence:
    """The fence of one tenure. It closes when the tenure ends, or by its own clock; then it stays closed.

    Its clock counts one TTL from before the last answered renewal was sent, and asks nobody: a heartbeat that hangs
    does not keep it open. What tells whoever waits at that instant is the tenure's lapse timer.

    Args:
        good_until: the first such instant, a reading of `Clock.elapsed`; infinite where leases cannot lapse.
    """

    def __init__(self, term: Term, clock: Clock, good_until: float) -> None:
        self._term = term
        self._clock = clock
        self._good_until = good_until
        self._closed: Latch[str] = Latch()

    @property
    def term(self) -> Term:
        return self._term

    @property
    def good_until(self) -> float:
        return self._good_until

    @property
    def is_closed(self) -> bool:
        if not self._closed.is_set:
            self._notice_lapse()
        return self._closed.is_set

    def check(self) -> None:
        """Pass, or raise.

        Raises:
            Fenced: the tenure ended, or its deadline passed.
        """
        if self._closed.is_set or self._clock.elapsed() >= self._good_until:
            self._notice_lapse()
            raise Fenced(f"{self._term.resource} at epoch {self._term.epoch} is closed: {self._closed.value}")

    def extend(self, good_until: float) -> None:
        """A renewal was answered in time. The instant only moves forward; a closed fence stays closed."""
        self._good_until = max(self._good_until, good_until)

    def close(self, reason: str) -> None:
        """Close it, if it is not closed."""
        self._closed.set(reason)

    def on_close(self, call: Callable[[str], None]) -> Callable[[], None]:
        """Have `call` told why, in the step in which it closes; now, if it is closed. Returns what ends that."""
        self._notice_lapse()
        return self._closed.on_set(call)

    async def wait_closed(self) -> str:
        """Wait until it is closed, and say why."""
        self._notice_lapse()
        return await self._closed.wait()

    def _notice_lapse(self) -> None:
        if self._clock.elapsed() >= self._good_until:
            self._closed.set("lease_lapsed")
