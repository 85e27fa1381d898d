"""One bucket of lease records: reads beside the store's clock, and writes that bring their own age where they must."""

import math
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from crewlet.kit.refusal import ConfigRefused
from crewlet.kit.together import side_by_side
from crewlet.ports.cells import Cells, Entry, Mark, WriteResult
from crewlet.ports.clock import Clock
from crewlet.seats.records import Found, LeaseRecord, encode, judge, lifetime_s

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Look:
    """One cell and the store's clock, read side by side.

    Attributes:
        found: the record, or None where there is none.
        mark: the store's clock and the bucket's last revision, no older than the look.
        asked_at: the reading of `Clock.elapsed` before anything was asked.
        answered_at: its reading when all was answered.
    """

    found: Found | None
    mark: Mark
    asked_at: float
    answered_at: float

    @property
    def live(self) -> Found | None:
        return self.found if self.found is not None and self.found.is_live else None

    def lapses_at(self, found: Found) -> float:
        """The reading of `Clock.elapsed` before which the record surely does not lapse."""
        return self.asked_at + (found.expires_at - self.mark.store_now).total_seconds()

    def landed_before(self, found: Found, instant: float) -> bool:
        """Whether the record was surely written before a reading of `Clock.elapsed`."""
        written_s_ago = (self.mark.store_now - found.entry.written_at).total_seconds()
        return self.answered_at - written_s_ago < instant


class LeaseTable:
    """A bucket of lease records.

    Args:
        cells: the bucket. Its age is the longest that a record lives.
        clock: this machine's.
        has_entry_ttl: every record is written with an age of its own, so that it also vanishes on time.

    Raises:
        ConfigRefused: the bucket has no age.
    """

    def __init__(self, cells: Cells, clock: Clock, *, has_entry_ttl: bool = False) -> None:
        if cells.max_age_s is None:
            raise ConfigRefused(
                "this bucket exists and keeps its records for ever, so that no lease in it would ever lapse",
                where=f"bucket {cells.name}",
                remedy="give it the lease TTL as its age, or delete it while no node runs",
            )
        self.cells = cells
        self.age_s: float = cells.max_age_s
        self._clock = clock
        self._has_entry_ttl = has_entry_ttl

    async def look(self, key: str) -> Look:
        """A cell as its leader has it.

        Raises:
            Unavailable: nobody answered.
        """
        asked_at = self._clock.elapsed()
        entry, mark = await self.cells.look(key)
        return self._look(entry, mark, asked_at)

    async def look_beside(self, key: str, other: Coroutine[Any, Any, A]) -> tuple[Look, A]:
        """The same, with one more question asked at the same time.

        Raises:
            Unavailable: nobody answered.
        """
        asked_at = self._clock.elapsed()
        (entry, mark), more = await side_by_side(self.cells.look(key), other)
        return self._look(entry, mark, asked_at), more

    def _look(self, entry: Entry | None, mark: Mark, asked_at: float) -> Look:
        found = None if entry is None else judge(entry, mark.store_now, self.age_s)
        return Look(found, mark, asked_at, self._clock.elapsed())

    async def written(self, key: str) -> Found | None:
        """A cell as its leader has it, judged at the moment of its own write: one read, for what time has no part in.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await self.cells.read(key)
        return None if entry is None else judge(entry, entry.written_at, self.age_s)

    async def landed_before(self, key: str, revision: int, instant: float) -> bool:
        """Whether a write of ours, known to be in the store, landed before a reading of `Clock.elapsed`.

        False also where it cannot be told.

        Raises:
            Unavailable: nobody answered.
        """
        look = await self.look(key)
        if look.found is None or look.found.entry.revision != revision:
            return False
        return look.landed_before(look.found, instant)

    async def list_held(self, prefix: str) -> list[Found]:
        """Every running tenure under a prefix.

        Raises:
            Unavailable: nobody answered.
        """
        return [found for found in await self.list_all(prefix) if found.is_held]

    async def list_all(self, prefix: str) -> list[Found]:
        """Every record under a prefix, of tenures that have ended too, for as long as the bucket keeps it.

        Raises:
            Unavailable: nobody answered.
        """
        entries, mark = await self.cells.look_over(prefix)
        return [judge(entry, mark.store_now, self.age_s) for entry in entries]

    def lifetime_s(self, record: LeaseRecord) -> float:
        return lifetime_s(record.ttl_s, self.age_s)

    def create(self, key: str, record: LeaseRecord) -> Awaitable[WriteResult]:
        return self.cells.create(key, encode(record), ttl_s=self._entry_ttl_s(record))

    def replace(self, key: str, record: LeaseRecord, *, expect: int) -> Awaitable[WriteResult]:
        return self.cells.replace(key, encode(record), expect=expect, ttl_s=self._entry_ttl_s(record))

    def _entry_ttl_s(self, record: LeaseRecord) -> float | None:
        # Whole seconds, rounded up: a store may know no others. The record itself says when it lapses.
        return float(math.ceil(self.lifetime_s(record))) if self._has_entry_ttl else None
