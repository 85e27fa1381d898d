"""A watch of one bucket that repairs itself.

The content comes from the stream's leader; what follows comes from a consumer that begins just after it, and that may
live on any member. Whenever that consumer is not provably whole (a gap, a silence, a new connection), both begin again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import structlog
from nats import errors

from crewlet.adapters.nats.connection import Connection, State
from crewlet.adapters.nats.link import Link
from crewlet.adapters.nats.translate import (
    DELIVERY_PREFIX,
    ApiError,
    ConsumerAnswer,
    Place,
    is_marker,
    parse_headers,
    parse_place,
    unavailable,
)
from crewlet.ports.cells import Cells, Entry, Gone, Level, Put, WatchEvent
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import NotLive, Unavailable

HEARTBEAT_S = 1.0
SILENCE_S = 3.0
"""Longer without a sign of the consumer means that it is lost."""

_MAKING_S = 5.0
_MAKING_TRY_S = 0.5
_NS = 1_000_000_000
_HEARTBEAT = b"NATS/1.0 100"

_log = structlog.get_logger()


class Feed(AsyncIterator[WatchEvent]):
    """What the caller has still to see. A slow caller costs one event a key, and a cancelled wait loses nothing."""

    def __init__(self) -> None:
        self._first: deque[WatchEvent] = deque()
        self._later: dict[str, WatchEvent] = {}
        self._known: set[str] = set()
        self._has_more = asyncio.Event()
        self._failure: Exception | None = None

    def restart(self, entries: Sequence[Entry], revision: int, *, is_reset: bool) -> None:
        """Begin with this content; what was not seen yet of an earlier one is in it, or gone from the bucket."""
        present = {entry.key for entry in entries}
        # What went while nobody watched would else live on in a caller who had seen it after the last level.
        gone: list[WatchEvent] = [Gone(key, revision) for key in sorted(self._known - present)]
        puts: list[WatchEvent] = [Put(entry) for entry in sorted(entries, key=lambda entry: entry.revision)]
        self._first = deque([*gone, *puts, Level(is_reset, revision)])
        self._later.clear()
        self._known = present
        self._has_more.set()

    def tell(self, key: str, event: Put | Gone) -> None:
        if isinstance(event, Put):
            self._known.add(key)
        else:
            self._known.discard(key)
        # Taken out first, so that the dictionary stays in the order of revisions.
        self._later.pop(key, None)
        self._later[key] = event
        self._has_more.set()

    def fail(self, error: Exception) -> None:
        self._failure = error
        self._has_more.set()

    async def __anext__(self) -> WatchEvent:
        while True:
            if self._first:
                return self._first.popleft()
            if self._later:
                return self._later.pop(next(iter(self._later)))
            if self._failure is not None:
                raise self._failure
            self._has_more.clear()
            await self._has_more.wait()


class _Generation:
    """One consumer, from its first message to the first doubt about it."""

    def __init__(self, on_event: Callable[[str, Put | Gone], None], on_doubt: Callable[[str], None], root: str) -> None:
        self._on_event = on_event
        self._on_doubt = on_doubt
        self._root = root
        self._delivered = 0
        self._early: list[tuple[str, Put | Gone]] | None = []
        self._seen_up_to: dict[str, int] = {}
        self._begins_after = 0
        self._is_over = False
        self.listening: int | None = None
        self.last_sign = asyncio.get_running_loop().time()

    def release(self, entries: Sequence[Entry], begins_after: int) -> None:
        """The content has been told: let through what came meanwhile, and what comes."""
        self._begins_after = begins_after
        self._seen_up_to = {entry.key: entry.revision for entry in entries if entry.revision > begins_after}
        early, self._early = self._early or [], None
        for key, event in early:
            self._pass_on(key, event)

    async def end(self, link: Link) -> None:
        """Hear no more of it. The server drops the consumer by itself when nobody listens."""
        self._is_over = True
        if self.listening is not None:
            with contextlib.suppress(errors.Error, OSError):
                await link.unlisten(self.listening)

    def take(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """One message of the consumer, or of the server about it."""
        if self._is_over:
            return
        self.last_sign = asyncio.get_running_loop().time()
        if reply.startswith(DELIVERY_PREFIX):
            self._take_write(subject, parse_place(reply.decode()), data, parse_headers(headers))
        elif headers.startswith(_HEARTBEAT):
            last = parse_headers(headers).get("Nats-Last-Consumer")
            if last is not None and last.isdigit() and int(last) != self._delivered:
                self._doubt("messages_missing")
        else:
            self._doubt(f"status_{headers[9:12].decode(errors='replace')}")

    def _take_write(self, subject: bytes, place: Place, data: bytes, headers: Mapping[str, str]) -> None:
        if place.delivered != self._delivered + 1:
            self._doubt("messages_missing")
            return
        self._delivered = place.delivered
        key = subject.decode(errors="replace").removeprefix(self._root)
        if is_marker(headers):
            event: Put | Gone = Gone(key, place.sequence)
        else:
            event = Put(Entry(key, data, place.sequence, place.published_at))
        if self._early is not None:
            self._early.append((key, event))
        else:
            self._pass_on(key, event)

    def _pass_on(self, key: str, event: Put | Gone) -> None:
        revision = event.entry.revision if isinstance(event, Put) else event.revision
        if revision > max(self._begins_after, self._seen_up_to.get(key, 0)):
            self._on_event(key, event)

    def _doubt(self, reason: str) -> None:
        self._is_over = True
        self._on_doubt(reason)


class Watch:
    """One watch: `start`, read `events`, `stop`."""

    def __init__(
        self, connection: Connection, cells: Cells, stream: str, root: str, prefix: str, entropy: Entropy
    ) -> None:
        self.events = Feed()
        self._connection = connection
        self._cells = cells
        self._stream = stream
        self._root = root
        self._prefix = prefix
        self._entropy = entropy
        self._generation: _Generation | None = None
        self._doubt: str | None = None
        self._is_doubted = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._forget_state: Callable[[], None] | None = None

    async def start(self) -> None:
        """Raises Unavailable when nobody answers; nothing is left open then."""
        self._forget_state = self._connection.listen(self._on_state)
        try:
            await self._begin(is_reset=False)
        except BaseException:
            self._forget_state()
            await self._end_generation()
            raise
        self._keeping = asyncio.create_task(self._keep(), name=f"watch {self._stream} {self._prefix}")

    async def stop(self) -> None:
        if self._forget_state is not None:
            self._forget_state()
        if self._keeping is not None:
            # Asked again, should some layer below have swallowed the first.
            while not self._keeping.done():
                self._keeping.cancel()
                await asyncio.wait({self._keeping}, timeout=1.0)
        await self._end_generation()

    async def _begin(self, *, is_reset: bool) -> None:
        """A consumer first, the content second: no write falls between them."""
        mark = await self._cells.mark()
        generation = _Generation(self.events.tell, self._on_doubt, self._root)
        self._generation = generation
        inbox = self._connection.client.new_inbox()
        try:
            generation.listening = await self._connection.client.listen(inbox, generation.take)
        except errors.Error as error:
            raise Unavailable(f"{self._stream}: cannot listen: {error!r}") from error
        await self._make_consumer(inbox, mark.last_revision + 1)
        entries = await self._cells.list(self._prefix)
        self.events.restart(entries, mark.last_revision, is_reset=is_reset)
        generation.release(entries, mark.last_revision)

    async def _make_consumer(self, inbox: str, first: int) -> None:
        name = f"watch-{self._entropy.token(8)}"
        config: dict[str, Any] = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "filter_subject": f"{self._root}{self._prefix}>",
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "idle_heartbeat": round(HEARTBEAT_S * _NS),
            "inactive_threshold": round(10 * _NS),
            "num_replicas": 1,
            "mem_storage": True,
        }
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        # Asked again soon: without a leader of the cluster nobody answers, and the same consumer is made only once.
        deadline = self._connection.clock.elapsed() + _MAKING_S
        while True:
            try:
                await self._connection.api(
                    f"CONSUMER.CREATE.{self._stream}.{name}.{config['filter_subject']}",
                    body,
                    ConsumerAnswer,
                    timeout_s=_MAKING_TRY_S,
                )
                return
            except ApiError as error:
                raise unavailable(error, self._stream) from error
            except NotLive:
                raise
            except Unavailable:
                if self._connection.clock.elapsed() + _MAKING_TRY_S >= deadline:
                    raise
            await self._connection.clock.sleep(0.05)

    async def _keep(self) -> None:
        """Repair whenever there is a doubt, for as long as the watch lives."""
        try:
            while True:
                await self._wait_for_doubt()
                await self._repair()
        except NotLive as error:
            self.events.fail(error)
        except Exception as error:  # noqa: BLE001
            # A watch that ended in silence would leave its reader believing in an old world.
            _log.exception("watch_failed", stream=self._stream, prefix=self._prefix)
            self.events.fail(error)

    async def _wait_for_doubt(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_doubted.is_set():
            assert self._generation is not None
            left_s = self._generation.last_sign + SILENCE_S - loop.time()
            if left_s <= 0:
                self._on_doubt("silence")
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._is_doubted.wait()

    async def _repair(self) -> None:
        _log.info("watch_broken", stream=self._stream, prefix=self._prefix, reason=self._doubt)
        pause_s = 0.05
        while True:
            await self._end_generation()
            self._is_doubted.clear()
            try:
                await self._begin(is_reset=True)
            except NotLive:
                raise
            except Unavailable as error:
                _log.debug("watch_repair_failed", stream=self._stream, error=str(error))
                await self._connection.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
            else:
                _log.info("watch_repaired", stream=self._stream, prefix=self._prefix)
                return

    async def _end_generation(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            await generation.end(self._connection.client)

    def _on_doubt(self, reason: str) -> None:
        self._doubt = reason
        self._is_doubted.set()

    def _on_state(self, state: State) -> None:
        # A new connection needs no mention: the repair of the old one's loss goes on until it succeeds.
        if state != "connected":
            self._on_doubt(f"connection_{state}")
