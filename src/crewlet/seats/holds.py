"""What one process remembers of the tenures it holds, and the order in which its own claims of a key go."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from crewlet.seats.records import Found, LeaseRecord
from crewlet.seats.table import Look


@dataclass(slots=True)
class Hold:
    """What this process knows of a tenure it holds.

    Attributes:
        record: as it was last written.
        newest: the revision of the newest write that is known to be in the store.
        revision: the same; None while a later write is undecided, so that the next one asks first.
        lapses_at: the reading of `Clock.elapsed` before which it surely does not lapse.
        is_over: it ended here, though the store may not have heard.
    """

    key: str
    record: LeaseRecord
    newest: int
    revision: int | None
    lapses_at: float
    is_over: bool = False

    def is_tenure_of(self, owner: str, epoch: int) -> bool:
        return self.record.owner == owner and self.record.epoch == epoch

    def is_news_to(self, look: Look) -> bool:
        """Whether the store that answered lacks a write that was answered to us, and that cannot have aged out yet.

        So does a member that lost its quorum and does not know it. It says nothing about who holds what.
        """
        is_lacking = look.found is None or look.found.entry.revision < self.newest
        return is_lacking and look.answered_at < self.lapses_at

    def ended_before(self, look: Look, found: Found) -> bool:
        """Whether the tenure's record was last written by an undecided write, and perhaps only after the lapse."""
        return found.entry.revision != self.revision and not look.landed_before(found, self.lapses_at)


class ClaimTurns:
    """One claim of a key at a time. A key that nobody claims costs nothing."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncGenerator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
