"""A whole bucket in a few pulls, from whichever member has a consumer's place, and proven to be no older than asked.

A consumer delivers in the order of sequences. Once it has delivered the leader's last one, or a later one, its member
had all that the leader had when it named that sequence: of each key, what was delivered is its newest value of then, or
a newer one. That is so only where no delivery was lost on its way: a member that is behind may have delivered an older
value before. What it does not deliver proves nothing, for its clock may have let a key lapse before the leader's.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from nats import errors

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.translate import DELIVERY_PREFIX, ApiError, ConsumerAnswer, StoredMessage, parse_place
from crewlet.ports.errors import Unavailable

_BATCH = 2_000
_BATCH_BYTES = 8 * 1024 * 1024
_PULL_S = 1.0
_CREATE_S = 0.5
_NS = 1_000_000_000

_log = structlog.get_logger()


async def read_bulk(connection: Connection, lane: Lane, stream: str, name: str, last: int) -> Sequence[StoredMessage]:
    """Every message that a member delivers up to the leader's sequence `last`, later ones of a key after earlier.

    Args:
        name: for the consumer; names no other.

    Returns:
        Nothing at all where that cannot be proven: the caller reads from the leader.

    Cancellation: the server drops the consumer by itself.
    """
    pulling = _Pulling(connection, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", last)
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "none",
        "replay_policy": "instant",
        "inactive_threshold": round(10 * _NS),
        "num_replicas": 1,
        "mem_storage": True,
    }
    body = {"stream_name": stream, "config": config, "action": "create"}
    try:
        await pulling.listen()
        await lane.api(f"CONSUMER.CREATE.{stream}.{name}", body, ConsumerAnswer, timeout_s=_CREATE_S)
        is_proven = await pulling.run()
    except (Unavailable, ApiError, errors.Error) as error:
        _log.debug("bulk_read_failed", stream=stream, error=str(error))
        return ()
    finally:
        await pulling.close()
        with contextlib.suppress(Unavailable, errors.Error):
            lane.ahead(f"CONSUMER.DELETE.{stream}.{name}", {}, timeout_s=_CREATE_S)
    return pulling.found if is_proven else ()


class _Pulling:
    def __init__(self, connection: Connection, next_subject: str, last: int) -> None:
        self._link = connection.client
        self._next = next_subject
        self._inbox = self._link.new_inbox()
        self._last = last
        self._left = 0
        self._delivered = 0
        self._is_whole = True
        self._has_ended = asyncio.Event()
        self._is_proven = False
        self._listening: int | None = None
        self.found: list[StoredMessage] = []

    async def listen(self) -> None:
        self._listening = await self._link.listen(self._inbox, self._take)

    async def run(self) -> bool:
        """Pull until the proof is there (True), or a delivery is missing, or nothing more comes."""
        body = {"batch": _BATCH, "max_bytes": _BATCH_BYTES, "expires": round(_PULL_S * _NS)}
        while self._is_whole and not self._is_proven:
            before = len(self.found)
            self._left = _BATCH
            self._has_ended.clear()
            self._link.send(self._next, self._inbox, msgspec.json.encode(body))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PULL_S + 0.5):
                    await self._has_ended.wait()
            if len(self.found) == before:
                break
        return self._is_whole and self._is_proven

    async def close(self) -> None:
        if self._listening is not None:
            with contextlib.suppress(errors.Error, OSError):
                await self._link.unlisten(self._listening)

    def _take(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if not reply.startswith(DELIVERY_PREFIX):
            # A status: this pull is over.
            self._has_ended.set()
            return
        place = parse_place(reply.decode())
        key = subject.decode(errors="replace")
        self.found.append(StoredMessage(key, place.sequence, place.published_at, data, headers))
        self._left -= 1
        self._delivered += 1
        self._is_whole = self._is_whole and place.delivered == self._delivered
        self._is_proven = self._is_proven or place.sequence >= self._last
        if self._is_proven or not self._is_whole or self._left <= 0:
            self._has_ended.set()
