# pyright: basic
"""The bare client library: what every figure is measured beside."""

import asyncio
from collections.abc import Sequence

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue


async def until_empty(js: JetStreamContext, stream: str) -> None:
    """Wait until a stream holds no message. Called when all has been handled, so that asking costs nobody's time."""
    while (await js.stream_info(stream)).state.messages:
        await asyncio.sleep(0.002)


async def open_inboxes(url: str, stream: str, count: int) -> tuple[Client, JetStreamContext]:
    """A stream like that of inboxes with durables `c0`, `c1` .., each on its own subject `{stream}.{number}`."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(StreamConfig(stream, subjects=[f"{stream}.*"], retention=RetentionPolicy.INTEREST))
    for number in range(count):
        await js.add_consumer(stream, inbox(f"c{number}", f"{stream}.{number}"))
    return client, js


def inbox(name: str, subject: str) -> ConsumerConfig:
    """A durable with the settings of an inbox."""
    return ConsumerConfig(
        durable_name=name,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=45,
        max_deliver=-1,
        max_ack_pending=10_000,
    )


class BareWorkers:
    """One loop a seat: fetch one, read a key, write a key, ack with a confirmed answer."""

    def __init__(self, client: Client, js: JetStreamContext, ledger: KeyValue, seats: int) -> None:
        self._client = client
        self._js = js
        self._ledger = ledger
        self._seats = seats
        self._done = 0
        self._pulls: list[JetStreamContext.PullSubscription] = []

    @classmethod
    async def open(cls, url: str, seats: int) -> "BareWorkers":
        client, js = await open_inboxes(url, "BARE", seats)
        workers = cls(client, js, await js.create_key_value(bucket="bare_ledger"), seats)
        for number in range(seats):
            workers._pulls.append(await js.pull_subscribe_bind(consumer=f"c{number}", stream="BARE"))
        return workers

    async def fill(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            await asyncio.gather(*(self._js.publish(f"BARE.{n}", body) for n in range(self._seats)))

    async def drain(self, messages: int) -> None:
        await asyncio.gather(*(self._work(number, messages) for number in range(self._seats)))

    async def close(self) -> None:
        await self._client.close()

    async def _work(self, number: int, messages: int) -> None:
        for _ in range(messages):
            (message,) = await self._pulls[number].fetch(1, timeout=30)
            self._done += 1
            key = f"seat-{number}.{self._done}"
            try:
                await self._ledger.get(key)
            except KeyNotFoundError:
                await self._ledger.create(key, b"done")
            await message.ack_sync()
