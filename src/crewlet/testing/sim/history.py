"""What really happened, in the order in which it did, at true simulated time; and its hash."""

import asyncio
import hashlib
from collections import Counter
from typing import NamedTuple

_TOGETHER = 512


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
        self._undigested: list[str] = []
        self._kept = kept
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, *facts: object) -> None:
        at, texts = asyncio.get_running_loop().time(), tuple(map(str, facts))
        self._undigested.append(f"{at!r}|{kind}|{'|'.join(texts)}\n")
        if len(self._undigested) == _TOGETHER:
            self._digest_now()
        self.counts[kind] += 1
        self.events.append(Event(at, kind, texts))
        if len(self.events) > 2 * self._kept:
            del self.events[: self._kept]

    @property
    def hash(self) -> str:
        self._digest_now()
        return self._digest.hexdigest()[:16]

    def _digest_now(self) -> None:
        self._digest.update("".join(self._undigested).encode())
        self._undigested.clear()
