# pyright: basic
"""FastStream's pull subscriber, one a seat: the common way to consume a JetStream from Python."""

import asyncio
from collections.abc import Sequence
from typing import Any

from faststream.nats import JStream, NatsBroker, PullSub
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from benchmarks.rawclient import open_inboxes, until_empty


class FastStreamWorkers:
    """A handler that does nothing but count. No ledger, no owner, and an ack that nobody confirms.

    Each seat's subscriber takes up to `batch` messages a pull, as a seat's inbox does here; FastStream then runs their
    handlers side by side, where a seat runs one after the other.
    """

    def __init__(self, client: Client, js: JetStreamContext, broker: NatsBroker, stream: str, seats: int) -> None:
        self._client = client
        self._js = js
        self._broker = broker
        self._stream = stream
        self._seats = seats
        self._open = asyncio.Event()
        self._left = 0
        self._handled = asyncio.Event()

    @classmethod
    async def open(cls, url: str, seats: int, batch: int) -> "FastStreamWorkers":
        name = f"FASTSTREAM{batch}"
        client, js = await open_inboxes(url, name, seats)
        broker = NatsBroker(url, logger=None)
        workers = cls(client, js, broker, name, seats)
        stream = JStream(name, declare=False)
        for number in range(seats):
            broker.subscriber(
                f"{name}.{number}", stream=stream, durable=f"c{number}", pull_sub=PullSub(batch_size=batch)
            )(workers._handle)
        await broker.start()
        return workers

    async def fill(self, bodies: Sequence[bytes]) -> None:
        self._open.clear()
        self._left = len(bodies) * self._seats
        self._handled.clear()
        for body in bodies:
            await asyncio.gather(*(self._js.publish(f"{self._stream}.{n}", body) for n in range(self._seats)))

    async def drain(self, messages: int) -> None:
        self._open.set()
        await self._handled.wait()
        await until_empty(self._js, self._stream)

    async def close(self) -> None:
        await self._broker.stop()
        await self._client.close()

    async def _handle(self, event: Any) -> None:
        await self._open.wait()
        self._left -= 1
        if self._left <= 0:
            self._handled.set()
