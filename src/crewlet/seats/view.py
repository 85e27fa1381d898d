"""What a bucket's entries come to, kept up by a watch and brought level with the bucket for each question.

An answer from a view is as exact as a full read: it counts only once the view has shown the bucket's last write, which
the caller has read from the leader. It costs the same with ten entries as with ten thousand.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, assert_never

import structlog

from crewlet.kit.supervise import Tasks
from crewlet.ports.cells import Cells, Entry, Gone, Level, Mark, Put
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable

IDLE_S = 60.0
"""A view stops this long after the last question, so that a node that asks nothing does not pay for the fleet."""

_FIRST_LEVEL_S = 10.0
_LEVEL_S = 2.0

_log = structlog.get_logger()


class Rows(Protocol):
    """What is kept of the entries."""

    def put(self, entry: Entry) -> None: ...

    def remove(self, key: str) -> None: ...


R = TypeVar("R", bound=Rows)


class _Following(Generic[R]):
    """The bucket as the watch has shown it so far."""

    def __init__(self, cells: Cells, make_rows: Callable[[], R]) -> None:
        self._cells = cells
        self._make_rows = make_rows
        self.rows = make_rows()
        # Oldest write first. Only a watch that starts over needs them, so they become rows no sooner.
        self._since_level: dict[str, Entry] = {}
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
                            self.rows.put(entry)
                            self._since_level.pop(entry.key, None)
                            self._since_level[entry.key] = entry
                        case Gone(key, revision):
                            self._see(revision)
                            self.rows.remove(key)
                            self._since_level.pop(key, None)
                        case Level():
                            self._level(event)
                        case _:
                            assert_never(event)
                    if self._waiting:
                        self._wake()
            self.failure = Unavailable("the watch ended")
        except Exception as error:  # noqa: BLE001 -- whatever broke the view, whoever waits must hear of it
            self.failure = error
        finally:
            self.failure = self.failure or Unavailable("the view was closed")
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

    def _see(self, revision: int) -> None:
        if revision > self._seen:
            self._seen = revision
        if revision > self._seen_since_level:
            self._seen_since_level = revision

    def _level(self, level: Level) -> None:
        if level.is_reset:
            self.rows, self._seen = self._make_rows(), self._seen_since_level
            for entry in self._since_level.values():
                self.rows.put(entry)
        self._seen = max(self._seen, level.revision)
        self._since_level, self._seen_since_level = {}, 0
        self.is_filled = True

    def _wake(self) -> None:
        for revision, waiter in self._waiting:
            if not waiter.done() and (self.failure is not None or self.has_reached(revision)):
                waiter.set_result(None)
        self._waiting = [(revision, waiter) for revision, waiter in self._waiting if not waiter.done()]


class View(Generic[R]):
    """The rows of a bucket. It opens at the first question.

    Args:
        cells: the bucket.
        make_rows: makes empty rows.
        clock: this machine's.
        name: for the log.
    """

    def __init__(self, cells: Cells, make_rows: Callable[[], R], clock: Clock, name: str) -> None:
        self._cells = cells
        self._make_rows = make_rows
        self._clock = clock
        self._name = name
        self._tasks = Tasks(name)
        self._following: _Following[R] | None = None
        self._running: tuple[asyncio.Task[None], ...] = ()
        self._asked_at = 0.0

    @property
    def is_watching(self) -> bool:
        """Whether it is kept at present."""
        return self._following is not None

    def is_level(self, revision: int) -> bool:
        """Whether it is kept and has shown every write up to a revision."""
        return self._following is not None and self._following.has_reached(revision)

    async def rows(self, mark: Mark) -> R:
        """The rows, which show every write up to a mark; from a full read where the watch does not get there in time.

        Args:
            mark: of the bucket, asked for after the question arose.

        Raises:
            Unavailable: nobody answered.
        """
        self._asked_at = self._clock.elapsed()
        following = self._following or self._open()
        if not following.has_reached(mark.last_revision):
            limit_s = _LEVEL_S if following.is_filled else _FIRST_LEVEL_S
            try:
                await self._tasks.within(following.reach(mark.last_revision), limit_s, self._clock.sleep, "level")
            except TimeoutError:
                _log.warning(f"{self._name}_not_level", bucket=self._cells.name, revision=mark.last_revision)
                self._close(following)
                return await self._read()
        if following.failure is not None:
            self._close(following)
            raise Unavailable(f"the view of {self._cells.name} broke") from following.failure
        return following.rows

    async def stop(self) -> None:
        """End it."""
        self._following = None
        await self._tasks.stop()

    async def _read(self) -> R:
        rows = self._make_rows()
        for entry in await self._cells.list():
            rows.put(entry)
        return rows

    def _open(self) -> _Following[R]:
        following = self._following = _Following(self._cells, self._make_rows)
        task = self._tasks.start(following.run(), "view")
        self._running = (task, self._tasks.start(self._stop_when_idle(following), "idle"))
        return following

    def _close(self, following: _Following[R]) -> None:
        if self._following is following:
            self._following = None
            for task in self._running:
                task.cancel()

    async def _stop_when_idle(self, following: _Following[R]) -> None:
        while (left_s := self._asked_at + IDLE_S - self._clock.elapsed()) > 0:
            await self._clock.sleep(left_s)
        self._close(following)
