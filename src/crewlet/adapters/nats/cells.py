"""Buckets as JetStream key-value streams, by raw requests: one round trip a write, every read from the leader.

The client library's own key-value calls are not used: they hide the error codes that tell a conflict from an undecided
write, and give a later write no age of its own. The layout on the stream is the common one, so its tools can look in.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from types import CoroutineType
from typing import Any, TypeVar

import msgspec
import structlog

from crewlet.adapters.nats.bulk import read_bulk
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.markers import purge_all
from crewlet.adapters.nats.settle import Write, message_in, newest_message, settle
from crewlet.adapters.nats.translate import (
    BUCKET_PREFIX,
    REPLICAS_NEED_A_CLUSTER,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    ApiError,
    BrokerUnfit,
    NothingThere,
    StoredMessage,
    StreamAnswer,
    StreamConfig,
    gone,
)
from crewlet.adapters.nats.watch import Watch
from crewlet.kit.together import side_by_side
from crewlet.ports.cells import Admit, BucketSpec, Cells, CellStore, Entry, Mark, WatchEvent, WriteResult
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import NotLive, NotTaken, Unavailable
from crewlet.ports.keys import check_expect, check_key, check_prefix, check_spec, check_write

LONGEST_SETTLING_S = 3.0
MARKER_AGE_S = 4 * 3600
"""How long the mark of a removed key stays, unless `maintenance` has purged it before: long past any settling, so that
what is settled is never its absence."""

_NS = 1_000_000_000
_DUPLICATE_WINDOW_S = 120.0
_GETS_AT_ONCE = 512
_KEYS_AT_ONCE = 512
"""Half of what the server takes in one question."""
_MANY = 256
"""So many keys are worth a consumer."""

T = TypeVar("T")

_log = structlog.get_logger()


class NatsCells(CellStore):
    """The buckets of one broker."""

    def __init__(self, connection: Connection, *, entropy: Entropy) -> None:
        self._connection = connection
        self._entropy = entropy

    async def open(self, spec: BucketSpec) -> Cells:
        """See `CellStore.open`. The budget is the connection's start-up time.

        Raises:
            BrokerUnfit: the broker cannot hold such a bucket.
        """
        check_spec(spec)
        return self._adopt(spec, await self._bring_up(spec, self._find_or_make))

    async def find(self, spec: BucketSpec) -> Cells | None:
        """The bucket where there is one; none is made. The budget is that of `open`.

        Raises:
            BrokerUnfit, Unavailable: as `open`.
        """
        check_spec(spec)
        config = await self._bring_up(spec, self._find)
        return None if config is None else self._adopt(spec, config)

    async def _bring_up(self, spec: BucketSpec, ask: Callable[[BucketSpec], Awaitable[T]]) -> T:
        """Ask until it is answered, for as long as the connection may take to come up."""
        clock = self._connection.clock
        deadline = clock.elapsed() + self._connection.bring_up_s
        while True:
            try:
                return await ask(spec)
            except NotLive:
                raise
            except (Unavailable, ApiError) as error:
                if clock.elapsed() >= deadline:
                    raise Unavailable(f"bucket {spec.name} could not be opened: {error}") from error
                await clock.sleep(0.1)

    async def _find(self, spec: BucketSpec) -> StreamConfig | None:
        try:
            return await self._stream("INFO", spec, {})
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            return None

    async def _find_or_make(self, spec: BucketSpec) -> StreamConfig:
        if (found := await self._find(spec)) is not None:
            return found
        try:
            config = await self._stream("CREATE", spec, self._config(spec))
        except ApiError as error:
            if error.err_code == STREAM_NAME_IN_USE:
                return await self._stream("INFO", spec, {})
            if error.err_code == REPLICAS_NEED_A_CLUSTER:
                raise BrokerUnfit(
                    f"the broker is a single server and cannot keep {self._connection.replicas} replicas",
                    where="stream.replicas",
                    remedy="set it to 1, or name a cluster",
                ) from error
            raise
        _log.info("bucket_created", bucket=spec.name, max_age_s=spec.max_age_s, replicas=self._connection.replicas)
        return config

    async def _stream(self, verb: str, spec: BucketSpec, body: dict[str, Any]) -> StreamConfig:
        answer = await self._connection.api(
            f"STREAM.{verb}.{BUCKET_PREFIX}{spec.name}", body, StreamAnswer, timeout_s=5.0
        )
        if answer.config is None:
            raise Unavailable(f"the broker's answer about bucket {spec.name} says nothing of it")
        return answer.config

    def _config(self, spec: BucketSpec) -> dict[str, Any]:
        max_age_s = spec.max_age_s or 0.0
        return {
            "name": f"{BUCKET_PREFIX}{spec.name}",
            "subjects": [f"$KV.{spec.name}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            # Without a number of its own a stream stops at 1,000 watchers.
            "max_consumers": 100_000,
            "max_msgs_per_subject": 1,
            "max_age": round(max_age_s * _NS),
            "duplicate_window": round(min(max_age_s or _DUPLICATE_WINDOW_S, _DUPLICATE_WINDOW_S) * _NS),
            "num_replicas": self._connection.replicas,
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            # With replicas each of them would answer, also one that is behind.
            "allow_direct": self._connection.replicas == 1,
            "allow_msg_ttl": True,
        }

    def _adopt(self, spec: BucketSpec, config: StreamConfig) -> Cells:
        if spec.allows_entry_ttl and not config.allow_msg_ttl:
            raise BrokerUnfit(
                f"the bucket {spec.name} exists and takes no age with a write",
                where="stream.url",
                remedy=f"delete the stream {BUCKET_PREFIX}{spec.name} while no node runs; the next one makes it anew",
            )
        max_age_s = config.max_age / _NS or None
        if max_age_s != spec.max_age_s:
            _log.info("bucket_adopted", bucket=spec.name, max_age_s=max_age_s, asked_for_s=spec.max_age_s)
        return NatsBucket(
            self._connection,
            replace(spec, max_age_s=max_age_s),
            self._entropy,
            ages_markers=config.allow_msg_ttl,
            is_replicated=config.num_replicas > 1,
            is_direct=config.allow_direct,
        )


class NatsBucket(Cells):
    """One bucket."""

    def __init__(
        self,
        connection: Connection,
        spec: BucketSpec,
        entropy: Entropy,
        *,
        ages_markers: bool,
        is_replicated: bool,
        is_direct: bool,
    ) -> None:
        self._connection = connection
        self._spec = spec
        self._entropy = entropy
        self._ages_markers = ages_markers
        self._is_replicated = is_replicated
        self._is_direct = is_direct and not is_replicated
        self._lane = Lane(connection)
        self._budget_s = _budget_s(spec.max_age_s)
        # Unique among all writers, so that a number is enough to tell its writes apart.
        self._writer = entropy.token(12)
        self._writes = itertools.count(1)
        self._stream = f"{BUCKET_PREFIX}{spec.name}"
        self._subjects = f"$KV.{spec.name}."

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def max_age_s(self) -> float | None:
        return self._spec.max_age_s

    async def read(self, key: str) -> Entry | None:
        check_key(key)
        found = await self._newest_of(key)
        return None if found is None or found.is_marker else self._entry(found)

    async def has_none(self, keys: Sequence[str]) -> bool:
        """See `Cells.has_none`. Asked of a lone server only: of several, one that is behind might answer."""
        for key in keys:
            check_key(key)
        if not self._is_direct or len(keys) > _KEYS_AT_ONCE or self._connection.is_clustered:
            return False
        body = msgspec.json.encode({"multi_last": [self._subjects + key for key in keys]})
        subject = f"$JS.API.DIRECT.GET.{self._stream}"
        timeout_s = self._budget_s / 6
        try:
            await self._lane.request(subject, body, timeout_s=timeout_s, wait_s=timeout_s)
        except NothingThere:
            return True
        except Unavailable:
            return False
        return False

    async def mark(self) -> Mark:
        now, answer = await self._patiently(lambda wait_s, timeout_s: self._info({}, wait_s, timeout_s))
        return Mark(now, answer.state.last_seq)

    async def made_anew_at(self, younger: str) -> datetime | None:
        mine, other = await side_by_side(self._made_at(self._stream), self._made_at(f"{BUCKET_PREFIX}{younger}"))
        return mine if mine is not None and other is not None and other < mine else None

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        check_write(self._spec, key, value, ttl_s)
        return await self._write(key, value, 0, ttl_s, admit)

    async def replace(
        self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        check_write(self._spec, key, value, ttl_s)
        check_expect(expect)
        return await self._write(key, value, expect, ttl_s, admit)

    async def remove(self, key: str, *, expect: int, admit: Admit | None = None) -> WriteResult:
        check_key(key)
        check_expect(expect)
        age = _age_line(MARKER_AGE_S) if self._ages_markers else ""
        return await self._settle(key, b"", expect, f"KV-Operation: DEL\r\n{age}", self._budget_s, admit)

    async def list(self, prefix: str = "") -> Sequence[Entry]:
        """See `Cells.list`.

        The leader names the keys and its last sequence in one answer. Few are then read from it, side by side. Many
        that are most of the bucket are taken from a consumer that has proven itself level with that answer, at a
        fraction of the work for both sides; what it did not deliver is read from the leader. A consumer alone would not
        do: it may live on a member that is behind, or whose fast clock has already let keys lapse.
        """
        check_prefix(prefix)
        _, newest = await self._survey(prefix)
        return [self._entry(message) for message in newest if not message.is_marker]

    async def _survey(self, prefix: str) -> "tuple[StreamAnswer, list[StoredMessage]]":
        """What the leader says, and then of each key that it names the newest message, markers included, in order."""
        wanted = {"subjects_filter": f"{self._subjects}{prefix}>"}
        _, answer = await self._patiently(lambda wait_s, timeout_s: self._info(wanted, wait_s, timeout_s))
        state = answer.state
        subjects, told = state.names()
        if told < answer.total:
            raise Unavailable(f"{self.name}: the broker named {told} of {answer.total} keys")
        found: dict[str, StoredMessage] = {}
        if len(subjects) >= _MANY and 2 * len(subjects) >= state.messages:
            name = f"list-{self._entropy.token(8)}"
            delivered = await read_bulk(self._connection, self._lane, self._stream, name, state.last_seq)
            found = {message.subject: message for message in delivered}
        newest = [found[subject] for subject in subjects if subject in found]
        missing = [subject for subject in subjects if subject not in found]
        if missing:
            newest += await self._read_all(missing)
            newest.sort(key=lambda message: message.subject)
        return answer, newest

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        """See `Cells.purge_markers`. Where the server ages markers by itself there is seldom one so old."""
        answer, newest = await self._survey("")
        assert answer.ts is not None
        turned()
        oldest = answer.ts - timedelta(seconds=older_than_s)
        markers = [message for message in newest if message.is_marker and message.time <= oldest]
        timeout_s = self._budget_s / 2

        async def check() -> None:
            _, found = await self._info({}, timeout_s / 2, timeout_s / 2)
            if found.created is None or found.created != answer.created:
                raise Unavailable(f"the bucket {self.name} was made anew meanwhile")

        return await purge_all(self._lane, self._stream, markers, turned, check=check, timeout_s=timeout_s)

    async def _read_all(self, subjects: Sequence[str]) -> "list[StoredMessage]":
        """Read keys from the leader, many at once and without a task for each."""
        newest: list[StoredMessage] = []
        on_their_way: deque[tuple[str, asyncio.Future[bytes]]] = deque()
        try:
            for subject in subjects:
                if len(on_their_way) >= _GETS_AT_ONCE:
                    await self._take(newest, *on_their_way.popleft())
                on_their_way.append((subject, self._read_ahead(subject)))
            while on_their_way:
                await self._take(newest, *on_their_way.popleft())
        finally:
            for _, reading in on_their_way:
                reading.cancel()
        return newest

    def _read_ahead(self, subject: str) -> asyncio.Future[bytes]:
        body = {"last_by_subj": subject}
        try:
            return self._lane.ahead(f"STREAM.MSG.GET.{self._stream}", body, timeout_s=self._budget_s / 2)
        except NotTaken:
            # Read patiently in its turn.
            reading: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            reading.cancel()
            return reading

    async def _take(self, newest: "list[StoredMessage]", subject: str, reading: asyncio.Future[bytes]) -> None:
        """Add what was read ahead; a read that came to nothing is made again."""
        if not reading.done():
            await asyncio.wait([reading])
        if reading.cancelled() or reading.exception() is not None:
            found = await self._newest_of(subject.removeprefix(self._subjects))
        else:
            try:
                found = message_in(reading.result(), self._stream)
            except Unavailable:
                found = await self._newest_of(subject.removeprefix(self._subjects))
        if found is not None:
            newest.append(found)

    @asynccontextmanager
    async def watch(self, prefix: str = "") -> AsyncGenerator[AsyncIterator[WatchEvent], None]:
        check_prefix(prefix)
        watch = Watch(self._connection, self, self._stream, self._subjects, prefix, self._entropy)
        await watch.start()
        try:
            yield watch.events
        finally:
            await watch.stop()

    def _write(
        self, key: str, value: bytes, expect: int, ttl_s: float | None, admit: Admit | None
    ) -> "CoroutineType[Any, Any, WriteResult]":
        if ttl_s is None:
            return self._settle(key, value, expect, "", self._budget_s, admit)
        return self._settle(key, value, expect, _age_line(ttl_s), _budget_s(ttl_s, self.max_age_s), admit)

    def _settle(
        self, key: str, value: bytes, expect: int, more: str, budget_s: float, admit: Admit | None
    ) -> "CoroutineType[Any, Any, WriteResult]":
        is_anybodys = expect == 0 and self._spec.any_writer
        write_id = "" if is_anybodys else f"{self._writer}.{next(self._writes)}"
        write = Write(self._stream, self._subjects + key, value, expect, write_id, more, self._is_replicated, admit)
        return settle(self._lane, write, budget_s=budget_s)

    async def _patiently(self, ask: Callable[[float, float], Awaitable[T]]) -> T:
        """Ask until somebody answers: an election or a new connection takes a moment, and a read may be repeated.

        Args:
            ask: told the seconds it may wait for its turn, and for its answer.
        """
        clock = self._connection.clock
        deadline = clock.elapsed() + self._budget_s
        pause_s = 0.02
        # The first try is short: during an election a request is lost without an answer, and the next one is not.
        try_s = max(0.1, self._budget_s / 6)
        while True:
            left_s = max(0.05, deadline - clock.elapsed())
            try:
                return await ask(left_s, min(left_s, try_s))
            except Unavailable:
                if clock.elapsed() + pause_s >= deadline:
                    raise
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)
            try_s = min(2 * try_s, self._budget_s / 2)

    async def _newest_of(self, key: str) -> StoredMessage | None:
        return await self._patiently(lambda wait_s, timeout_s: self._newest(key, wait_s, timeout_s))

    async def _newest(self, key: str, wait_s: float, timeout_s: float) -> StoredMessage | None:
        return await newest_message(self._lane, self._stream, self._subjects + key, timeout_s=timeout_s, wait_s=wait_s)

    async def _made_at(self, stream: str) -> datetime | None:
        """When a stream was made; None where there is none."""
        answer = await self._patiently(lambda wait_s, timeout_s: self._told(stream, {}, wait_s, timeout_s))
        if answer is not None and answer.created is None:
            raise Unavailable(f"{self.name}: the broker's answer does not say when {stream} was made")
        return None if answer is None else answer.created

    async def _told(self, stream: str, body: dict[str, Any], wait_s: float, timeout_s: float) -> StreamAnswer | None:
        """What the leader says of a stream; None where there is none."""
        try:
            return await self._lane.api(f"STREAM.INFO.{stream}", body, StreamAnswer, timeout_s=timeout_s, wait_s=wait_s)
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise Unavailable(f"{self.name}: {error}") from error

    async def _info(self, body: dict[str, Any], wait_s: float, timeout_s: float) -> tuple[datetime, StreamAnswer]:
        """The leader's clock, without which an answer is none, and what it says of the stream."""
        answer = await self._told(self._stream, body, wait_s, timeout_s)
        if answer is None:
            raise gone(self._stream)
        if answer.ts is None:
            raise Unavailable(f"{self.name}: the broker's answer carries no time")
        return answer.ts, answer

    def _entry(self, found: StoredMessage) -> Entry:
        return Entry(found.subject.removeprefix(self._subjects), found.data, found.seq, found.time)


def _age_line(ttl_s: float) -> str:
    """Whole seconds, rounded up: the server cuts off what is beyond, and early is worse than late."""
    return f"Nats-TTL: {math.ceil(ttl_s)}s\r\n"


def _budget_s(*ages_s: float | None) -> float:
    """A write that landed must still be there when the last repeat is judged, so: a third of its shortest age."""
    return min([LONGEST_SETTLING_S, *(age / 3 for age in ages_s if age is not None)])
