"""Is any seat or presence lease held at a lower protocol than ours? Answered from a watch, as exactly as a full read.

A judgement brings the view level with the bucket's last write, which the caller has read from the bucket's leader, and
then looks only at the lowest protocols it holds. It costs the same with ten leases as with ten thousand.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import assert_never

import msgspec
import structlog

from crewlet.kit.supervise import Tasks
from crewlet.ports.cells import Cells, Entry, Gone, Level, Mark, Put
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import NODE, SEAT
from crewlet.seats.records import OLDEST_PROTOCOL, lifetime_s, prefix_of

IDLE_S = 60.0
"""A view stops this long after the last judgement, so that a node that claims nothing does not pay for the fleet."""

_FIRST_LEVEL_S = 10.0
_LEVEL_S = 2.0
_COUNTED = (prefix_of(SEAT), prefix_of(NODE))

_log = structlog.get_logger()


class _Row(msgspec.Struct, frozen=True):
    """What the gate reads of a lease record."""

    released: bool = False
    ttl_s: float = 0.0
    protocol: int = OLDEST_PROTOCOL


_decoder = msgspec.json.Decoder(_Row)


class _Rows:
    """Leases by protocol, oldest write first."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._lapses: dict[int, dict[str, datetime]] = {}
        self._protocols: dict[str, int] = {}

    def put(self, entry: Entry) -> None:
        self.remove(entry.key)
        if not entry.key.startswith(_COUNTED):
            return
        try:
            row = _decoder.decode(entry.value)
        except msgspec.MsgspecError:
            # It keeps claims of its own resource out until it ages out; it must not keep every claim out.
            _log.error("lease_record_unreadable", key=entry.key, revision=entry.revision)
            return
        if row.released:
            return
        lapses_at = entry.written_at + timedelta(seconds=lifetime_s(row.ttl_s, self._age_s))
        self._protocols[entry.key] = row.protocol
        self._lapses.setdefault(row.protocol, {})[entry.key] = lapses_at

    def remove(self, key: str) -> None:
        protocol = self._protocols.pop(key, None)
        if protocol is not None:
            self._lapses[protocol].pop(key, None)

    def floor(self, store_now: datetime) -> int | None:
        """The lowest protocol of what is live. Lapsed rows are met once and dropped."""
        for protocol in sorted(self._lapses):
            rows = self._lapses[protocol]
            while rows:
                key, lapses_at = next(iter(rows.items()))
                if lapses_at > store_now:
                    return protocol
                del rows[key], self._protocols[key]
        return None


class _View:
    """The bucket as the watch has shown it so far."""

    def __init__(self, cells: Cells, age_s: float) -> None:
        self._cells = cells
        self._age_s = age_s
        self._rows = _Rows(age_s)
        self._since_level = _Rows(age_s)
        self._seen = 0
        self._seen_since_level = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.is_filled = False
        self.failure: Exception | None = None

    async def run(self) -> None:
        """Follow the bucket until cancelled or broken; `failure` says of what."""
        try:
            async with self._cells.watch() as events:
                async for event in events:
                    match event:
                        case Put(entry):
                            self._see(entry.revision)
                            self._rows.put(entry)
                            self._since_level.put(entry)
                        case Gone(key, revision):
                            self._see(revision)
                            self._rows.remove(key)
                            self._since_level.remove(key)
                        case Level():
                            self._level(event)
                        case _:
                            assert_never(event)
                    self._wake()
            self.failure = Unavailable("the watch of the leases ended")
        except Exception as error:  # noqa: BLE001 -- whatever broke the view, the judgements that wait must hear of it
            self.failure = error
        finally:
            self.failure = self.failure or Unavailable("the view of the leases was closed")
            self._wake()

    def has_reached(self, revision: int) -> bool:
        """Whether every write up to this revision has been seen."""
        return self.is_filled and self._seen >= revision

    async def reach(self, revision: int) -> None:
        """Wait until every write up to this revision has been seen, or the view has failed."""
        if not self.has_reached(revision) and self.failure is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, waiter))
            await waiter

    def floor(self, store_now: datetime) -> int | None:
        return self._rows.floor(store_now)

    def _see(self, revision: int) -> None:
        self._seen = max(self._seen, revision)
        self._seen_since_level = max(self._seen_since_level, revision)

    def _level(self, level: Level) -> None:
        if level.is_reset:
            self._rows, self._seen = self._since_level, self._seen_since_level
        self._seen = max(self._seen, level.revision)
        self._since_level, self._seen_since_level = _Rows(self._age_s), 0
        self.is_filled = True

    def _wake(self) -> None:
        if not self._waiting:
            return
        for revision, waiter in self._waiting:
            if not waiter.done() and (self.failure is not None or self.has_reached(revision)):
                waiter.set_result(None)
        self._waiting = [(revision, waiter) for revision, waiter in self._waiting if not waiter.done()]


class ProtocolGate:
    """The lowest protocol at which a seat or a presence is leased.

    Args:
        cells: the bucket of the leases.
        age_s: its age.
        clock: this machine's.
    """

    def __init__(self, cells: Cells, age_s: float, clock: Clock) -> None:
        self._cells = cells
        self._age_s = age_s
        self._clock = clock
        self._tasks = Tasks("protocol gate")
        self._view: _View | None = None
        self._running: tuple[asyncio.Task[None], ...] = ()
        self._judged_at = 0.0

    @property
    def is_watching(self) -> bool:
        """Whether the view is kept at present."""
        return self._view is not None

    def is_level(self, revision: int) -> bool:
        """Whether the view is kept, its watch is whole, and it has shown every write up to a revision."""
        return self._view is not None and self._view.has_reached(revision)

    async def floor(self, mark: Mark) -> int | None:
        """The lowest protocol of the live seat and presence leases as of a mark; None when there is no such lease.

        Args:
            mark: of the lease bucket, asked for after the question arose.

        Raises:
            Unavailable: nobody answered.
        """
        self._judged_at = self._clock.elapsed()
        view = self._view or self._open()
        if not view.has_reached(mark.last_revision):
            limit_s = _LEVEL_S if view.is_filled else _FIRST_LEVEL_S
            try:
                await self._tasks.within(view.reach(mark.last_revision), limit_s, self._clock.sleep, "level")
            except TimeoutError:
                _log.warning("protocol_view_not_level", bucket=self._cells.name, revision=mark.last_revision)
                self._close(view)
                return self._floor_of(await self._cells.list(), mark.store_now)
        if view.failure is not None:
            self._close(view)
            raise Unavailable("the view of the leases broke") from view.failure
        return view.floor(mark.store_now)

    async def stop(self) -> None:
        """End the view."""
        self._view = None
        await self._tasks.stop()

    def _floor_of(self, entries: Iterable[Entry], store_now: datetime) -> int | None:
        rows = _Rows(self._age_s)
        for entry in entries:
            rows.put(entry)
        return rows.floor(store_now)

    def _open(self) -> _View:
        view = self._view = _View(self._cells, self._age_s)
        following = self._tasks.start(view.run(), "view")
        self._running = (following, self._tasks.start(self._stop_when_idle(view), "idle"))
        return view

    def _close(self, view: _View) -> None:
        if self._view is view:
            self._view = None
            for task in self._running:
                task.cancel()

    async def _stop_when_idle(self, view: _View) -> None:
        while (left_s := self._judged_at + IDLE_S - self._clock.elapsed()) > 0:
            await self._clock.sleep(left_s)
        self._close(view)
