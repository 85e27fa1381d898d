"""What really happened, in the order in which it did, at true simulated time; and its hash."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

_TOGETHER = 512

Fact = str | int | None


class Event(NamedTuple):
    """One thing that happened.

    Attributes:
        at: simulated seconds since the start, on no node's clock.
        kind: what.
        facts: the rest, as text.
    """

    at: float
    kind: str
    facts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.at:12.6f} {self.kind:<14} {' '.join(self.facts)}"


class History:
    """The events of one simulation.

    Args:
        kept: how many of the newest are kept for a report; the hash covers all.
    """

    def __init__(self, *, kept: int = 100_000) -> None:
        self._digest = hashlib.sha256()
        self._undigested: list[tuple[float, str, tuple[Fact, ...]]] = []
        self._kept = kept
        self._events: list[tuple[float, str, tuple[Fact, ...]]] = []
        self._counts: Counter[str] = Counter()

    def note(self, kind: str, *facts: Fact) -> None:
        event = asyncio.get_running_loop().time(), kind, facts
        self._undigested.append(event)
        if len(self._undigested) == _TOGETHER:
            self._digest_now()

    def newest(self, count: int) -> tuple[Event, ...]:
        """The last events, oldest first."""
        newest = [*self._events, *self._undigested][-count:]
        return tuple(Event(at, kind, tuple(map(str, facts))) for at, kind, facts in newest)

    @property
    def counts(self) -> Mapping[str, int]:
        """How often what happened."""
        return self._counts + Counter(kind for _, kind, _ in self._undigested)

    @property
    def hash(self) -> str:
        self._digest_now()
        return self._digest.hexdigest()[:16]

    def _digest_now(self) -> None:
        news = self._undigested
        self._digest.update(msgspec.json.encode(news))
        self._counts.update(kind for _, kind, _ in news)
        self._events += news
        if len(self._events) > 2 * self._kept:
            del self._events[: self._kept]
        news.clear()
