"""Signs of life: each loop that matters says that its pass has turned, and a watcher reads how long ago.

A loop that has ended took its work with it and is no longer watched; one that has not turned yet is not judged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

BEATS_PER_THRESHOLD = 5
SLOWEST_BEAT_S = 1.0


def cadence_s(threshold_s: float, slowest_s: float = SLOWEST_BEAT_S) -> float:
    """How often loops beat and the watcher looks: a second, or what lets five beats fit into the threshold.

    Source: WD-04.
    """
    return min(slowest_s, threshold_s / BEATS_PER_THRESHOLD)


@dataclass(frozen=True, slots=True)
class Lag:
    """The loop that has not turned for longest.

    Attributes:
        name: which loop.
        seconds: since its last beat.
    """

    name: str
    seconds: float


class Beat:
    """The sign of life of one loop. Its words are read from another thread."""

    __slots__ = ("_now", "_stamped_at", "name")

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self.name = name
        self._now = now
        self._stamped_at = math.inf  # not judged before the first time

    def stamp(self, at: float | None = None) -> None:
        """The loop turns.

        Args:
            at: since when nothing of its pass has been waited for; now, unless told.
        """
        self._stamped_at = self._now() if at is None else at

    def grant(self, seconds: float) -> None:
        """The loop turns, and begins what asks others several times, each time with a bound: it may take longer.

        Args:
            seconds: how much longer; what takes more is judged as ever.
        """
        self._stamped_at = self._now() + seconds

    def stop(self) -> None:
        """The loop has ended, or waits for as long as it must: it is not judged until its next stamp."""
        self._stamped_at = math.inf

    def stamped_at(self) -> float:
        """When it turned; infinite while it is not judged."""
        return self._stamped_at

    def lag_s(self) -> float:
        """How long ago it turned; 0 or less while it is not judged."""
        return self._now() - self._stamped_at

    @property
    def is_live(self) -> bool:
        return self._stamped_at != math.inf


class Beats:
    """The watched loops of one process.

    Args:
        now: seconds on a clock that no step of the wall clock moves. Called from any thread.
        threshold_s: how long a loop may go without a beat; infinite where nobody watches.
        slowest_s: how long it goes without one at most, however long the threshold.
    """

    def __init__(self, now: Callable[[], float], threshold_s: float, *, slowest_s: float = SLOWEST_BEAT_S) -> None:
        self._now = now
        self.threshold_s = threshold_s
        self.beat_s = cadence_s(threshold_s, slowest_s) if threshold_s < math.inf else math.inf
        self._beats: dict[str, Beat] = {}

    def of(self, name: str) -> Beat:
        """The beat of a loop. It is judged from its first stamp on."""
        return self._beats.setdefault(name, Beat(name, self._now))

    def worst(self) -> Lag | None:
        """The live loop that has not turned for longest; None when no loop is live."""
        oldest = min(list(self._beats.values()), key=Beat.stamped_at, default=None)
        return Lag(oldest.name, oldest.lag_s()) if oldest is not None and oldest.is_live else None

    def stall_s(self) -> float | None:
        """How long the worst live loop has not turned, where that is more than two beats; else None."""
        worst = self.worst()
        return round(worst.seconds, 3) if worst is not None and worst.seconds > 2 * self.beat_s else None
