"""The cells twin of a simulation: one store at the broker, and a view of it over each node's wire.

It copies the awkward sides of the real one: an entry past its age may still be read and even replaced for a moment, a
repeated write gets the answer of the first, a stalled store applies old requests before it notices what has aged.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Protocol, TypeVar, cast

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
from crewlet.ports.errors import Unavailable
from crewlet.ports.keys import check_expect, check_key, check_prefix, check_spec, check_write
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.loop import SimLoop
from crewlet.testing.sim.wire import Broker, Wire
from crewlet.testing.virtual import EPOCH

T = TypeVar("T")

TRY_S = 1.0
BUDGET_S = 3.0


class StoreObserver(Protocol):
    """Sees what the store really does, as it does it."""

    def wrote(self, bucket: str, key: str, value: bytes | None, revision: int) -> None: ...

    def was_read(self, bucket: str, key: str, is_there: bool) -> None: ...


@dataclass(slots=True)
class _Held:
    entry: Entry
    dies_at: float


class SimStore:
    """All buckets, at the broker.

    Args:
        lateness_s: how long after its age an entry may still be there, at most.
    """

    def __init__(self, broker: Broker, dice: Dice, observer: StoreObserver, *, lateness_s: float = 0.5) -> None:
        self.broker = broker
        self.dice = dice
        self.observer = observer
        self.lateness_s = lateness_s
        self.buckets: dict[str, SimBucket] = {}
        self._now = 0.0, EPOCH

    def open(self, spec: BucketSpec) -> "SimBucket":
        check_spec(spec)
        if spec.name not in self.buckets:
            self.buckets[spec.name] = SimBucket(spec, self)
        return self.buckets[spec.name]

    def now(self) -> datetime:
        at = asyncio.get_running_loop().time()
        if at != self._now[0]:
            self._now = at, EPOCH + timedelta(seconds=at)
        return self._now[1]

    def aged_late(self) -> None:
        """The store stood still: what aged meanwhile is noticed only a moment from now."""
        at = asyncio.get_running_loop().time()
        for bucket in self.buckets.values():
            for held in bucket.held.values():
                if held.dies_at < at:
                    held.dies_at = at + self.lateness_s * self.dice.random()


class SimBucket:
    """One bucket. Every method takes effect at once: it is called where the request has arrived."""

    def __init__(self, spec: BucketSpec, store: SimStore) -> None:
        self.spec = spec
        self._store = store
        self.held: dict[str, _Held] = {}
        self.watchers: list[Watcher] = []
        self._last_revision = 0
        self._max_age_s = spec.max_age_s
        self._answers: dict[str, WriteResult] = {}
        self._loop = cast(SimLoop, asyncio.get_running_loop())

    def read(self, key: str) -> Entry | None:
        entry = self._live(key)
        self._store.observer.was_read(self.spec.name, key, entry is not None)
        return entry

    def mark(self) -> Mark:
        return Mark(self._store.now(), self._last_revision)

    def survey(self, prefix: str) -> tuple[Sequence[Entry], float]:
        """What is there, by key, and when that was."""
        keys = sorted([key for key in self.held if key.startswith(prefix)])
        return [entry for entry in map(self._live, keys) if entry is not None], self._loop.now_s

    def write(
        self, write_id: str, key: str, value: bytes | None, expect: int | None, ttl_s: float | None
    ) -> WriteResult:
        """Compare and set. `expect` None creates, `value` None removes. A repeat under one id has one effect."""
        known = self._answers.get(write_id)
        if known is not None:
            return known
        live = self._live(key)
        actual = live.revision if live is not None else None
        if actual != expect:
            result: WriteResult = Refused(actual)
        else:
            self._last_revision += 1
            self._apply(key, value, ttl_s)
            result = Done(self._last_revision)
        self._answers[write_id] = result
        if len(self._answers) > 5000:
            for old in list(self._answers)[:2500]:
                del self._answers[old]
        return result

    def present(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """What is there, oldest first, and the last revision."""
        live = map(self._live, [key for key in self.held if key.startswith(prefix)])
        present = sorted([entry for entry in live if entry is not None], key=attrgetter("revision"))
        return present, self._last_revision

    def forget(self, wire: Wire) -> None:
        """A connection is gone for good, and whoever watched over it."""
        self.watchers = [watcher for watcher in self.watchers if watcher.wire is not wire]

    def break_watches(self) -> None:
        for watcher in self.watchers:
            watcher.break_off()

    def _apply(self, key: str, value: bytes | None, ttl_s: float | None) -> None:
        revision = self._last_revision
        if value is None:
            del self.held[key]
            event: WatchEvent = Gone(key, revision)
        else:
            entry = Entry(key, value, revision, self._store.now())
            self.held[key] = _Held(entry, self._dies_at(ttl_s))
            event = Put(entry)
        self._store.observer.wrote(self.spec.name, key, value, revision)
        for watcher in self.watchers:
            watcher.tell(key, revision, event)

    def _live(self, key: str) -> Entry | None:
        held = self.held.get(key)
        if held is None:
            return None
        if self._loop.now_s >= held.dies_at:
            del self.held[key]
            return None
        return held.entry

    def _dies_at(self, ttl_s: float | None) -> float:
        age_s = self._max_age_s
        if ttl_s is not None:
            age_s = ttl_s if age_s is None else min(ttl_s, age_s)
        if age_s is None:
            return math.inf
        return self._loop.now_s + age_s + self._store.lateness_s * self._store.dice.random()


class SimCellStore(CellStore):
    """The store as one node incarnation sees it."""

    def __init__(self, store: SimStore, wire: Wire, make_id: Callable[[], str], on_call: "CallObserver") -> None:
        self._store = store
        self._wire = wire
        self._make_id = make_id
        self._on_call = on_call

    async def open(self, spec: BucketSpec) -> Cells:
        bucket = await self._wire.ask(spec.name, lambda: self._store.open(spec), budget_s=10.0, try_s=2.0)
        return SimCells(bucket, self._wire, self._make_id, self._on_call)


class CallObserver(Protocol):
    """Sees what a node asks of its cells, as it asks."""

    def reading(self, bucket: str, key: str) -> None: ...

    def writing(self, bucket: str, key: str, value: bytes | None) -> None: ...

    def unread(self, bucket: str, key: str) -> None: ...

    def listed(self, bucket: str, prefix: str, looked_at: float) -> None: ...

    def unwritten(self, bucket: str, key: str) -> None: ...

    def heard(self, bucket: str, revision: int) -> None: ...


class Unwatched:
    """Nobody sees it."""

    def reading(self, bucket: str, key: str) -> None: ...

    def writing(self, bucket: str, key: str, value: bytes | None) -> None: ...

    def unread(self, bucket: str, key: str) -> None: ...

    def listed(self, bucket: str, prefix: str, looked_at: float) -> None: ...

    def unwritten(self, bucket: str, key: str) -> None: ...

    def heard(self, bucket: str, revision: int) -> None: ...


class SimCells(Cells):
    """One bucket, over a wire."""

    def __init__(self, bucket: SimBucket, wire: Wire, make_id: Callable[[], str], on_call: CallObserver) -> None:
        self._bucket = bucket
        self._wire = wire
        self._make_id = make_id
        self._on_call = on_call
        self._name = bucket.spec.name
        self._budget_s = min(BUDGET_S, 0.3 * (bucket.spec.max_age_s or math.inf))
        self._try_s = min(TRY_S, self._budget_s / 3)

    @property
    def name(self) -> str:
        return self._name

    @property
    def max_age_s(self) -> float | None:
        return self._bucket.spec.max_age_s

    async def read(self, key: str) -> Entry | None:
        check_key(key)
        self._on_call.reading(self._name, key)
        return await self._question(key, lambda: self._bucket.read(key))

    async def mark(self) -> Mark:
        return await self._question("", self._bucket.mark)

    async def look(self, key: str) -> tuple[Entry | None, Mark]:
        check_key(key)
        self._on_call.reading(self._name, key)
        return await self._questions(key, lambda: self._bucket.read(key))

    async def list(self, prefix: str = "") -> Sequence[Entry]:
        check_prefix(prefix)
        return self._listed(prefix, await self._question(prefix, lambda: self._bucket.survey(prefix)))

    async def look_over(self, prefix: str = "") -> tuple[Sequence[Entry], Mark]:
        check_prefix(prefix)
        survey, mark = await self._questions(prefix, lambda: self._bucket.survey(prefix))
        return self._listed(prefix, survey), mark

    def _listed(self, prefix: str, survey: tuple[Sequence[Entry], float]) -> Sequence[Entry]:
        entries, looked_at = survey
        self._on_call.listed(self._name, prefix, looked_at)
        return entries

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        check_write(self._bucket.spec, key, value, ttl_s)
        return await self._write(key, value, None, ttl_s, admit)

    async def replace(
        self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        check_write(self._bucket.spec, key, value, ttl_s)
        check_expect(expect)
        return await self._write(key, value, expect, ttl_s, admit)

    async def remove(self, key: str, *, expect: int, admit: Admit | None = None) -> WriteResult:
        check_key(key)
        check_expect(expect)
        return await self._write(key, None, expect, None, admit)

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        return 0

    def watch(self, prefix: str = "") -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._watch(prefix)

    @asynccontextmanager
    async def _watch(self, prefix: str) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        watcher = Watcher(self._bucket, self._wire, prefix, self._on_call)
        await watcher.start()
        try:
            yield watcher
        finally:
            watcher.stop()

    async def _write(
        self, key: str, value: bytes | None, expect: int | None, ttl_s: float | None, admit: Admit | None
    ) -> WriteResult:
        write_id = self._make_id()
        if admit is not None:
            admit()
        self._on_call.writing(self._name, key, value)
        try:
            return await self._wire.ask(
                self._name,
                lambda: self._bucket.write(write_id, key, value, expect, ttl_s),
                budget_s=self._budget_s,
                try_s=self._try_s,
                before_each=admit,
            )
        except Unavailable as error:
            self._on_call.unwritten(self._name, key)
            return Unknown(str(error))
        except BaseException:
            self._on_call.unwritten(self._name, key)
            raise

    async def _question(self, key: str, effect: Callable[[], T]) -> T:
        try:
            return await self._wire.ask(self._name, effect, budget_s=self._budget_s, try_s=self._try_s)
        except (Unavailable, asyncio.CancelledError):
            self._on_call.unread(self._name, key)
            raise

    async def _questions(self, key: str, effect: Callable[[], T]) -> tuple[T, Mark]:
        """One about a key, and the mark, side by side and in no order."""
        mark = self._bucket.mark
        try:
            return await self._wire.ask_both(self._name, effect, mark, budget_s=self._budget_s, try_s=self._try_s)
        except (Unavailable, asyncio.CancelledError):
            self._on_call.unread(self._name, key)
            raise


class Watcher(AsyncIterator[WatchEvent]):
    """A watch over a wire. What the wire swallows breaks it, and it repairs itself by starting over."""

    def __init__(self, bucket: SimBucket, wire: Wire, prefix: str, on_call: "CallObserver") -> None:
        self._bucket = bucket
        self.wire = wire
        self._prefix = prefix
        self._on_call = on_call
        self._events: deque[WatchEvent] = deque()
        self._early: list[tuple[int, WatchEvent]] = []
        self._is_filling = False
        self._waiting: asyncio.Future[None] | None = None
        self._is_broken = False

    async def start(self) -> None:
        await self._fill(is_reset=False)

    def stop(self) -> None:
        """Nobody looks any more."""
        if self in self._bucket.watchers:
            self._bucket.watchers.remove(self)

    def tell(self, key: str, revision: int, event: WatchEvent) -> None:
        """The bucket has changed. Called at the broker."""
        if not self._is_broken and key.startswith(self._prefix) and not self.wire.push(self._take, revision, event):
            self.break_off()

    def break_off(self) -> None:
        """Nothing more comes until it has started over."""
        if not self._is_broken:
            self._is_broken = True
            self.wire.notice_silence(self._stir)

    async def __anext__(self) -> WatchEvent:
        while not self._events:
            if self._is_broken or self._is_filling:  # filling: it may have begun at the broker, unheard
                try:
                    await self._fill(is_reset=True)
                except Unavailable:
                    await asyncio.sleep(0.5)
                continue
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        event = self._events.popleft()
        if isinstance(event, Put):
            self._on_call.heard(self._bucket.spec.name, event.entry.revision)
        return event

    def _take(self, revision: int, event: WatchEvent) -> None:
        if self._is_filling:
            self._early.append((revision, event))
        else:
            self._events.append(event)
            self._stir()

    def _stir(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _fill(self, *, is_reset: bool) -> None:
        self._is_filling, self._early = True, []
        entries, revision = await self.wire.ask(self._bucket.spec.name, self._begin, budget_s=BUDGET_S, try_s=TRY_S)
        self._events.clear()
        self._events.extend(Put(entry) for entry in entries)
        self._events.append(Level(is_reset=is_reset))
        self._events.extend(event for written, event in self._early if written > revision)
        self._is_filling, self._early = False, []

    def _begin(self) -> tuple[Sequence[Entry], int]:
        self._is_broken = False
        if self not in self._bucket.watchers:
            self._bucket.watchers.append(self)
        return self._bucket.present(self._prefix)
