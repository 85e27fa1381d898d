# pyright: basic
"""From a deferral on one process's connection to the delivery on another's, beside the bare client's nak to fetch.

Two connections on one event loop stand for the processes, on either side. The second has its pull open before the
message is handed back; the clock runs from the handler's answer to the other handler's call, and from the call of `nak`
to the return of `fetch`.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import nats

from benchmarks.rawclient import inbox
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.mail import Ack, Defer, Delivery, Outcome, Subscription

TIMES = 60


async def measure(url: str) -> dict[str, Any]:
    """`defer_ratio`: of times, the medians of interleaved tries."""
    first, second = await _Process.open(url, "defer:1"), await _Process.open(url, "defer:2")
    raw = await _Raw.open(url)
    ours_s: list[float] = []
    raw_s: list[float] = []
    for number in range(TIMES):
        ours_s.append(await _defer(first, second, number))
        raw_s.append(await raw.hand_over(number))
    for each in (first, second, raw):
        await each.close()
    return {
        "defer_ratio": round(statistics.median(ours_s) / statistics.median(raw_s), 3),
        "defer_ms": round(1000 * statistics.median(ours_s), 3),
        "nak_to_fetch_ms": round(1000 * statistics.median(raw_s), 3),
    }


async def _defer(first: "_Process", second: "_Process", number: int) -> float:
    subscription = Subscription("crewlet.agent.defer.inbox", "agent-defer")
    has_it, may_answer, is_there = asyncio.Event(), asyncio.Event(), asyncio.Event()
    deferred_at = delivered_at = 0.0

    async def defer(_: Sequence[Delivery]) -> Outcome:
        nonlocal deferred_at
        has_it.set()
        await may_answer.wait()
        deferred_at = time.perf_counter()
        return Defer("the seat is elsewhere")

    async def take(_: Sequence[Delivery]) -> Outcome:
        nonlocal delivered_at
        delivered_at = time.perf_counter()
        is_there.set()
        return Ack()

    one = await first.mail.attach(subscription, defer, good_until=float("inf"))
    await first.mail.publish(subscription.topic, b"x" * 200, message_id=f"defer-{number}")
    await has_it.wait()
    other = await second.mail.attach(subscription, take, good_until=float("inf"))
    while (backlog := await first.mail.waiting(subscription)) is None or backlog.open_pulls != 1:
        await asyncio.sleep(0.001)
    may_answer.set()
    await is_there.wait()
    await one.detach()
    await other.detach()
    return delivered_at - deferred_at


class _Process:
    def __init__(self, connection: Connection, mail: NatsMail) -> None:
        self.connection = connection
        self.mail = mail

    @classmethod
    async def open(cls, url: str, name: str) -> "_Process":
        clock, entropy = SystemClock(), SystemEntropy()
        connection = await Connection.open(BrokerAddress(urls=(url,), name=name), clock=clock, startup_timeout_s=30)
        mail = NatsMail(connection, clock=clock, entropy=entropy, ack_window_s=45.0)
        await mail.start()
        return cls(connection, mail)

    async def close(self) -> None:
        await self.mail.stop()
        await self.connection.close()


class _Raw:
    def __init__(self, clients: Sequence[Any], pulls: Sequence[Any]) -> None:
        self._clients = clients
        self._pulls = pulls

    @classmethod
    async def open(cls, url: str) -> "_Raw":
        clients = [await nats.connect(url), await nats.connect(url)]
        js = clients[0].jetstream()
        await js.add_stream(name="RAWDEFER", subjects=["rawdefer"], retention="interest")
        await js.add_consumer("RAWDEFER", inbox("raw", "rawdefer"))
        pulls = [await each.jetstream().pull_subscribe_bind(consumer="raw", stream="RAWDEFER") for each in clients]
        return cls(clients, pulls)

    async def hand_over(self, number: int) -> float:
        js = self._clients[0].jetstream()
        await js.publish("rawdefer", b"x" * 200)
        (message,) = await self._pulls[0].fetch(1, timeout=10)
        fetching = asyncio.create_task(self._fetch())
        for _ in itertools.count():
            if (await js.consumer_info("RAWDEFER", "raw")).num_waiting == 1:
                break
            await asyncio.sleep(0.001)
        begun = time.perf_counter()
        await message.nak()
        again, fetched_at = await fetching
        await again.ack_sync()
        return fetched_at - begun

    async def _fetch(self) -> tuple[Any, float]:
        (message,) = await self._pulls[1].fetch(1, timeout=10)
        return message, time.perf_counter()

    async def close(self) -> None:
        for each in self._clients:
            await each.close()
