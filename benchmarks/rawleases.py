# pyright: basic
"""Leases by hand: the bare client's requests that a claim and a renewal cannot do without."""

import asyncio
import base64
import json
import time
from typing import Any

import nats
from nats.aio.client import Client
from nats.js.client import JetStreamContext

_AGE_S = 3600
_TIMEOUT_S = 30.0
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_RECORD = {
    "owner": "bench:1",
    "claim": "0123456789abcdef",
    "acquired_at": "2026-01-01T00:00:00.000000Z",
    "preferred": "bench",
    "protocol": 4,
    "meta": {},
}


class RawLeases:
    """Records and counters in two buckets of the same shape as Crewlet's."""

    def __init__(self, client: Client, js: JetStreamContext) -> None:
        self._client = client
        self._js = js
        self._revision = 0
        self._revisions: list[int] = []

    @classmethod
    async def open(cls, urls: tuple[str, ...], replicas: int) -> "RawLeases":
        client = await nats.connect(list(urls))
        js = client.jetstream()
        await js.create_key_value(bucket="bare_leases", ttl=_AGE_S, replicas=replicas)
        await js.create_key_value(bucket="bare_epochs", replicas=replicas)
        return cls(client, js)

    async def close(self) -> None:
        await self._client.close()

    async def claim(self) -> float:
        """Seconds of: record, stream information and counter side by side, three dependent writes, one read."""
        begun = time.perf_counter()
        record, _, counter = await asyncio.gather(
            self._newest("KV_bare_leases", "$KV.bare_leases.seat.claimed"),
            self._ask("$JS.API.STREAM.INFO.KV_bare_leases", b"{}"),
            self._newest("KV_bare_epochs", "$KV.bare_epochs.seat.claimed"),
        )
        epoch = 1 + (json.loads(base64.b64decode(counter["data"]))["epoch"] if counter else 0)
        first = await self._write("$KV.bare_leases.seat.claimed", _record(0), record["seq"] if record else 0)
        await self._write(
            "$KV.bare_epochs.seat.claimed",
            json.dumps({"epoch": epoch, "preferred": "bench"}).encode(),
            counter["seq"] if counter else 0,
        )
        self._revision = await self._write("$KV.bare_leases.seat.claimed", _record(epoch), first)
        await self._newest("KV_bare_leases", "$KV.bare_leases.seat.claimed")
        return time.perf_counter() - begun

    async def release(self) -> None:
        await self._write("$KV.bare_leases.seat.claimed", _record(0), self._revision)

    async def fill(self, count: int) -> None:
        """Write so many records."""
        self._revisions = [0] * count
        await self.renew_all()

    async def renew_all(self) -> float:
        """Seconds of writing every record once, pipelined by the client's own publishing without waiting."""
        value = _record(7)
        begun = time.perf_counter()
        acks = [
            await self._js.publish_async(
                f"$KV.bare_leases.seat.held-{number}", value, headers={_EXPECTED: str(revision)}
            )
            for number, revision in enumerate(self._revisions)
        ]
        self._revisions = [(await ack).seq for ack in acks]
        return time.perf_counter() - begun

    async def _ask(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        message = await self._client.request(subject, body, timeout=_TIMEOUT_S, headers=headers)
        return json.loads(message.data)

    async def _newest(self, stream: str, subject: str) -> dict[str, Any] | None:
        answer = await self._ask(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}).encode())
        return answer.get("message")

    async def _write(self, subject: str, value: bytes, expect: int) -> int:
        return (await self._ask(subject, value, {_EXPECTED: str(expect)}))["seq"]


def _record(epoch: int) -> bytes:
    return json.dumps(_RECORD | {"epoch": epoch}).encode()
