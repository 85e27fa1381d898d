"""The pauses as one node knows them: kept up by a watch, asked for again whenever somebody must know them as of now.

What was learnt stays until the store says otherwise: a store that cannot be reached ends no pause, and a pause whose
instant has come ends only once the store's own clock says so.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime

import structlog

from crewlet.kit.backoff import Backoff
from crewlet.kit.supervise import Tasks
from crewlet.mail.pauses import PAUSES_KEY, Pause, decode_pauses
from crewlet.mail.switchboard import either
from crewlet.ports.cells import Cells, Entry, Gone, Level, Put, WatchEvent
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable

_LONGEST_SLEEP_S = 3600.0
_WARN_EVERY = 20

_log = structlog.get_logger()


class PauseWatch:
    """The pauses in force.

    Args:
        cells: the bucket.
        clock: this machine's; it only paces.
        on_change: called after every change of what this says. What it raises is logged.
    """

    def __init__(self, cells: Cells, clock: Clock, on_change: Callable[[], None]) -> None:
        self._cells = cells
        self._clock = clock
        self._on_change = on_change
        self._pauses: Mapping[str, Pause] = {}
        self._revision = 0
        self._store_now: datetime | None = None
        self._asked = 0
        self._answered = 0
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks = Tasks("pauses")

    def start(self) -> None:
        """Begin to follow the pauses."""
        self._tasks.start_eternal(self._follow(), "watch")
        self._tasks.start_eternal(self._answer(), "reader")
        self._tasks.start_eternal(self._end_in_time(), "ends")

    async def stop(self) -> None:
        """End it. What was learnt stays."""
        await self._tasks.stop()

    def of(self, handle: str) -> Pause | None:
        """The pause of a seat that is in force as far as is known."""
        pause = self._pauses.get(handle)
        is_over = pause is not None and self._store_now is not None and pause.is_over(self._store_now)
        return None if is_over else pause

    def ask(self) -> int:
        """Ask the store anew. The answer is in what this says once `is_answered` holds of the returned question."""
        self._asked += 1
        self._wanted.set()
        return self._asked

    def is_answered(self, question: int) -> bool:
        """Whether a read that was sent after this question has been answered. Until then nobody knows who is paused."""
        return self._answered >= question

    async def _answer(self) -> None:
        """Read for those who asked, again while nobody answers."""
        delays = Backoff(0.1, 2.0)
        failures = 0
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            asked = self._asked
            try:
                entry = await self._cells.read(PAUSES_KEY)
                if (entry.revision if entry is not None else 0) < self._revision:
                    # It lacks a write that was seen: a leader that was deposed and does not know it.
                    raise Unavailable("the store answered from before a write that this node has seen")
                self._take(entry)
            except Unavailable as error:
                if failures % _WARN_EVERY == 0:
                    _log.warning("pauses_unread", error=str(error))
                failures += 1
                self._wanted.set()
                await self._clock.sleep(delays.next_s())
            else:
                delays.reset()
                failures = 0
                self._answered = asked
                self._tell()

    async def _follow(self) -> None:
        delays = Backoff(0.2, 5.0)
        while True:
            try:
                async with self._cells.watch() as events:
                    await self._heed(events, delays)
                error = "the watch ended"
            except Unavailable as unavailable:
                error = str(unavailable)
            _log.warning("pauses_not_watched", error=error)
            await self._clock.sleep(delays.next_s())

    async def _heed(self, events: AsyncIterator[WatchEvent], delays: Backoff) -> None:
        since_level: Entry | None = None
        is_first = True
        async for event in events:
            delays.reset()
            match event:
                case Put(entry) if entry.key == PAUSES_KEY:
                    since_level = entry
                    if entry.revision > self._revision:
                        self._see(entry)
                case Gone(key) if key == PAUSES_KEY:
                    since_level = None
                    self._forget()
                case Level(is_reset, revision):
                    if is_reset and since_level is not None:
                        self._see(since_level)  # perhaps of another bucket, whose revisions began anew
                    elif since_level is None and (is_reset or (is_first and revision >= self._revision)):
                        self._forget()
                    since_level, is_first = None, False
                case _:
                    pass

    def _see(self, entry: Entry) -> None:
        try:
            self._take(entry)
        except Unavailable as error:
            _log.error("pauses_unreadable", revision=entry.revision, error=str(error))
        else:
            self._tell()

    def _forget(self) -> None:
        """The store says that there is no record."""
        self._pauses, self._revision = {}, 0
        self._tell()

    def _take(self, entry: Entry | None) -> None:
        self._pauses = decode_pauses(entry)
        if entry is not None:
            self._revision = entry.revision

    async def _end_in_time(self) -> None:
        """Let pauses end when the store's clock has come to their instant."""
        delays = Backoff(0.2, 5.0)
        while True:
            self._changed.clear()
            ends = [pause.until for handle in self._pauses if (pause := self.of(handle)) and pause.until is not None]
            if not ends:
                await self._changed.wait()
                continue
            try:
                now = (await self._cells.mark()).store_now
            except Unavailable as error:
                _log.warning("pauses_unread", error=str(error))
                await self._clock.sleep(delays.next_s())
                continue
            delays.reset()
            self._store_now = now if self._store_now is None else max(now, self._store_now)
            left_s = (min(ends) - self._store_now).total_seconds()
            if left_s <= 0:
                self._tell()
            else:
                await either(self._changed.wait(), self._clock.sleep(min(left_s, _LONGEST_SLEEP_S)))

    def _tell(self) -> None:
        self._changed.set()
        try:
            self._on_change()
        except Exception:  # noqa: BLE001 -- the node's code; without these loops no pause would reach it
            _log.exception("pauses_notice_broke")
