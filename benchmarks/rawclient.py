# pyright: basic
"""The bare client library: what every figure is measured beside."""

import asyncio

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue


async def stream_messages(js: JetStreamContext, stream: str) -> int:
    """How many messages a stream holds."""
    return (await js.stream_info(stream)).state.messages


class BareWorkers:
    """One loop a seat: fetch one, read a key, write a key, ack with a confirmed answer."""

    def __init__(self, client: Client, js: JetStreamContext, ledger: KeyValue, seats: int, messages: int) -> None:
        self._client = client
        self._js = js
        self._ledger = ledger
        self._seats = seats
        self._messages = messages
        self._done = 0

    @classmethod
    async def open(cls, url: str, seats: int, messages: int) -> "BareWorkers":
        client = await nats.connect(url)
        js = client.jetstream()
        await js.add_stream(StreamConfig("BARE", subjects=["bare.*"], retention=RetentionPolicy.INTEREST))
        ledger = await js.create_key_value(bucket="bare_ledger")
        for number in range(seats):
            await js.add_consumer(
                "BARE",
                ConsumerConfig(
                    durable_name=f"c{number}",
                    filter_subject=f"bare.{number}",
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=45,
                    max_ack_pending=1000,
                ),
            )
        return cls(client, js, ledger, seats, messages)

    async def fill(self) -> None:
        for _ in range(self._messages):
            await asyncio.gather(*(self._js.publish(f"bare.{n}", b"x" * 200) for n in range(self._seats)))

    async def drain(self) -> None:
        await asyncio.gather(*(self._work(number) for number in range(self._seats)))

    async def close(self) -> None:
        await self._client.close()

    async def _work(self, number: int) -> None:
        subscription = await self._js.pull_subscribe_bind(consumer=f"c{number}", stream="BARE")
        for _ in range(self._messages):
            (message,) = await subscription.fetch(1, timeout=30)
            self._done += 1
            key = f"seat-{number}.{self._done}"
            try:
                await self._ledger.get(key)
            except KeyNotFoundError:
                await self._ledger.create(key, b"done")
            await message.ack_sync()
        await subscription.unsubscribe()
