"""Buckets in this process, for `coordination.type: local`, twins and simulations.

One bucket, the epochs, may be kept in a file. Ages run on `Clock.elapsed`; the store's time is the wall clock at the
start carried forward by the same counter, so it never steps.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from crewlet.adapters.local.epochs import EpochsFile, JournalRecord
from crewlet.ports.cells import (
    Admit,
    BucketSpec,
    Cells,
    CellStore,
    Done,
    Entry,
    Gone,
    Level,
    Mark,
    Put,
    Refused,
    Unknown,
    WatchEvent,
    WriteResult,
)
from crewlet.ports.clock import Clock
from crewlet.ports.keys import check_expect, check_key, check_prefix, check_spec, check_write

EPOCHS_BUCKET = "crewlet_epochs"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Held:
    entry: Entry
    dies_at: float | None


class LocalCells(CellStore):
    """All buckets of one process.

    Args:
        clock: ages and the store's time.
        epochs_file: where the bucket `crewlet_epochs` is kept; None keeps it in memory with the rest.
    """

    def __init__(self, clock: Clock, *, epochs_file: Path | None = None) -> None:
        self._clock = clock
        self._epochs_file = epochs_file
        self._started_at = clock.now()
        self._started = clock.elapsed()
        self._buckets: dict[str, LocalBucket] = {}
        self._opening = asyncio.Lock()

    async def open(self, spec: BucketSpec) -> Cells:
        """See `CellStore.open`.

        Raises:
            ConfigRefused: the epochs file cannot be used.
        """
        check_spec(spec)
        async with self._opening:
            bucket = self._buckets.get(spec.name)
            if bucket is None:
                keeps_file = spec.name == EPOCHS_BUCKET and self._epochs_file is not None
                journal = EpochsFile(self._epochs_file) if keeps_file and self._epochs_file else None
                bucket = LocalBucket(spec, self, journal)
                await bucket.load()
                self._buckets[spec.name] = bucket
            return bucket

    def elapsed(self) -> float:
        return self._clock.elapsed()

    def store_now(self) -> datetime:
        return self._started_at + timedelta(seconds=self._clock.elapsed() - self._started)


class LocalBucket(Cells):
    """One bucket. Writes follow one another under a lock; without a file none of them ever waits."""

    def __init__(self, spec: BucketSpec, store: LocalCells, journal: EpochsFile | None) -> None:
        self._spec = spec
        self._store = store
        self._journal = journal
        self._held: dict[str, _Held] = {}
        self._last_revision = 0
        self._watchers: list[_Watcher] = []
        self._writing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def max_age_s(self) -> float | None:
        return self._spec.max_age_s

    async def load(self) -> None:
        """Take in the file, if there is one."""
        if self._journal is None:
            return
        for record in (await asyncio.to_thread(self._journal.load)).values():
            self._last_revision = max(self._last_revision, record.revision)
            if record.value is not None:
                entry = Entry(record.key, record.value, record.revision, record.written_at)
                self._held[record.key] = _Held(entry, self._dies_at(None))

    async def read(self, key: str) -> Entry | None:
        check_key(key)
        return self._live(key)

    async def mark(self) -> Mark:
        return Mark(self._store.store_now(), self._last_revision)

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        check_write(self._spec, key, value, ttl_s)
        return await self._write(key, value, None, ttl_s, admit)

    async def replace(
        self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        check_write(self._spec, key, value, ttl_s)
        check_expect(expect)
        return await self._write(key, value, expect, ttl_s, admit)

    async def remove(self, key: str, *, expect: int, admit: Admit | None = None) -> WriteResult:
        check_key(key)
        check_expect(expect)
        return await self._write(key, None, expect, None, admit)

    async def list(self, prefix: str = "") -> Sequence[Entry]:
        check_prefix(prefix)
        live = (self._live(key) for key in sorted(self._held) if key.startswith(prefix))
        return [entry for entry in live if entry is not None]

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        """See `Cells.purge_markers`. Nothing is kept of a removed key here."""
        return 0

    @asynccontextmanager
    async def watch(self, prefix: str = "") -> AsyncGenerator[AsyncIterator[WatchEvent], None]:
        present = sorted(await self.list(prefix), key=lambda entry: entry.revision)
        watcher = _Watcher(prefix, present, self._last_revision)
        self._watchers.append(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)

    async def _write(
        self, key: str, value: bytes | None, expect: int | None, ttl_s: float | None, admit: Admit | None
    ) -> WriteResult:
        async with self._writing:
            if admit is not None:
                admit()
            live = self._live(key)
            actual = live.revision if live else None
            if actual != expect:
                return Refused(actual)
            # Taken even if the write fails: a journal line that was not confirmed may still be on the disk.
            self._last_revision += 1
            record = JournalRecord(key, value, self._last_revision, self._store.store_now())
            if self._journal is None:
                self._apply(record, ttl_s)
            elif reason := await self._keep(self._journal, record, ttl_s):
                return Unknown(reason)
            return Done(record.revision)

    async def _keep(self, journal: EpochsFile, record: JournalRecord, ttl_s: float | None) -> str | None:
        """Put the record on the disk, then in memory. Returns what went wrong, if anything.

        Cancellation: waits for the disk all the same, so that memory and file agree, then ends.
        """
        writing = asyncio.get_running_loop().run_in_executor(None, journal.append, record)
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait({writing})
            except asyncio.CancelledError as error:
                cancelled = error
        failure = writing.exception()
        if failure is None:
            self._apply(record, ttl_s)
        if cancelled is not None:
            raise cancelled
        if failure is None:
            return None
        if not isinstance(failure, OSError):
            raise failure
        _log.error("epochs_file_write_failed", bucket=self.name, key=record.key, error=str(failure))
        return f"the epochs file could not be written: {failure}"

    def _apply(self, record: JournalRecord, ttl_s: float | None) -> None:
        if record.value is None:
            self._held.pop(record.key, None)
            event: WatchEvent = Gone(record.key, record.revision)
        else:
            entry = Entry(record.key, record.value, record.revision, record.written_at)
            self._held[record.key] = _Held(entry, self._dies_at(ttl_s))
            event = Put(entry)
        for watcher in self._watchers:
            watcher.tell(record.key, event)

    def _live(self, key: str) -> Entry | None:
        held = self._held.get(key)
        if held is None:
            return None
        if held.dies_at is not None and self._store.elapsed() >= held.dies_at:
            del self._held[key]
            return None
        return held.entry

    def _dies_at(self, ttl_s: float | None) -> float | None:
        ages = [age for age in (ttl_s, self.max_age_s) if age is not None]
        return self._store.elapsed() + min(ages) if ages else None


class _Watcher(AsyncIterator[WatchEvent]):
    """What one watcher has still to see: the content it began with, whole, then the newest event of each key.

    A cancelled wait loses nothing.
    """

    def __init__(self, prefix: str, present: Sequence[Entry], last_revision: int) -> None:
        self._prefix = prefix
        self._first: deque[WatchEvent] = deque([*(Put(entry) for entry in present), Level(revision=last_revision)])
        self._later: dict[str, WatchEvent] = {}
        self._has_more = asyncio.Event()

    def tell(self, key: str, event: WatchEvent) -> None:
        if not key.startswith(self._prefix):
            return
        # Taken out first, so that the dictionary stays in the order of revisions.
        self._later.pop(key, None)
        self._later[key] = event
        self._has_more.set()

    async def __anext__(self) -> WatchEvent:
        if self._first:
            return self._first.popleft()
        while not self._later:
            self._has_more.clear()
            await self._has_more.wait()
        return self._later.pop(next(iter(self._later)))
