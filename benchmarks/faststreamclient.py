# pyright: basic
"""FastStream's pull subscriber, one a seat: the common way to consume a JetStream from Python."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from faststream.nats import JStream, NatsBroker, PullSub
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from benchmarks.rawclient import open_inboxes, until_empty

_PULL_S = 1.0
"""A pull that nothing comes for ends after this; between two rounds only."""


class FastStreamWorkers:
    """A handler that does nothing but count. No ledger, no owner, and an ack that nobody confirms.

    Each seat's subscriber takes up to `batch` messages a pull, as a seat's inbox does here; FastStream then runs their
    handlers side by side, where a seat runs one after the other. While mail is published no subscriber has a pull open:
    what it had fetched by then would be work done before the clock starts.
    """

    def __init__(self, client: Client, js: JetStreamContext, broker: NatsBroker, stream: str, seats: int) -> None:
        self._client = client
        self._js = js
        self._broker = broker
        self._stream = stream
        self._seats = seats
        self._open = asyncio.Event()
        self._waiting = 0
        self._left = 0
        self._handled = asyncio.Event()

    @classmethod
    async def open(cls, url: str, seats: int, batch: int) -> "FastStreamWorkers":
        name = f"FASTSTREAM{batch}"
        client, js = await open_inboxes(url, name, seats)
        broker = NatsBroker(url, logger=None)
        workers = cls(client, js, broker, name, seats)
        stream = JStream(name, declare=False)
        pull = PullSub(batch_size=batch, timeout=_PULL_S)
        subscribers = [
            broker.subscriber(f"{name}.{number}", stream=stream, durable=f"c{number}", pull_sub=pull)
            for number in range(seats)
        ]
        for subscriber in subscribers:
            subscriber(workers._handle)
        await broker.start()
        for subscriber in subscribers:
            assert subscriber.subscription is not None
            subscriber.subscription.fetch = workers._gated(subscriber.subscription.fetch)
        return workers

    async def fill(self, bodies: Sequence[bytes]) -> None:
        self._open.clear()
        while self._waiting < self._seats:
            await asyncio.sleep(0.01)
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

    def _gated(self, fetch: Callable[..., Awaitable[Any]]) -> Any:
        async def gated(**options: Any) -> Any:
            if not self._open.is_set():
                self._waiting += 1
                await self._open.wait()
                self._waiting -= 1
            return await fetch(**options)

        return gated

    async def _handle(self, event: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self._handled.set()
