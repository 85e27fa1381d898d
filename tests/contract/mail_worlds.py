"""The two worlds in which the mail contract is run: the twin in virtual time, and a real nats-server."""

import asyncio
import base64
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.nats.streams import stream_of
from crewlet.adapters.nats.translate import ApiError, parse_headers
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells
from crewlet.ports.clock import Clock
from crewlet.ports.mail import Ack, BatchOptions, Delivery, Outcome, Subscription
from crewlet.testing.contracts.mailworld import DeadLetter, LiveMail, until, until_backlog
from crewlet.testing.twins.mail import TwinBroker, TwinMail
from crewlet.testing.virtual import VirtualClock


class TwinWorld:
    """A twin broker of its own."""

    def __init__(self, *, delivery_budget: int, ack_window_s: float) -> None:
        self.clock: Clock = VirtualClock()
        self.ack_window_s = ack_window_s
        self.ceiling = 1_048_576
        self.broker = TwinBroker(self.clock, ack_window_s=ack_window_s, delivery_budget=delivery_budget)
        self.clients: list[TwinMail] = []
        self.store = LocalCells(self.clock)

    def topic(self, name: str) -> str:
        return f"crewlet.agent.t.x.{name}"

    async def client(self, *, is_started: bool = True) -> LiveMail:
        mail = TwinMail(self.broker)
        self.clients.append(mail)
        if is_started:
            await mail.start()
        return mail

    async def cells(self, spec: BucketSpec) -> Cells:
        return await self.store.open(spec)

    async def kept(self, topic: str) -> int:
        return len(self.broker.retained(topic))

    async def dead_letters(self, topic: str) -> Sequence[DeadLetter]:
        return [
            DeadLetter(letter.headers["Crewlet-Message-Id"], letter.data, letter.headers)
            for letter in self.broker.dead_letters
            if letter.headers["Crewlet-Topic"] == topic
        ]


class NatsWorld:
    """A corner of a real broker that others may use too."""

    def __init__(
        self, urls: tuple[str, ...], stack: AsyncExitStack, *, delivery_budget: int, ack_window_s: float, replicas: int
    ) -> None:
        self.clock: Clock = SystemClock()
        self.entropy = SystemEntropy()
        self.ack_window_s = ack_window_s
        self.urls = urls
        self._budget = delivery_budget
        self._corner = self.entropy.token()
        self._stack = stack
        self._replicas = replicas
        self.connections: list[Connection] = []
        self.ceiling = 0

    async def connect(self) -> Connection:
        connection = await Connection.open(
            BrokerAddress(self.urls), clock=self.clock, startup_timeout_s=30.0, replicas=self._replicas
        )
        self._stack.push_async_callback(connection.close)
        self.connections.append(connection)
        self.ceiling = connection.client.max_payload
        return connection

    def topic(self, name: str) -> str:
        return f"crewlet.agent.{self._corner}.x.{name}"

    async def client(self, *, is_started: bool = True) -> LiveMail:
        connection = await self.connect()
        mail = NatsMail(
            connection,
            clock=self.clock,
            entropy=self.entropy,
            ack_window_s=self.ack_window_s,
            delivery_budget=self._budget,
            replicas=self._replicas,
        )
        if is_started:
            await mail.start()
            self._stack.push_async_callback(mail.stop)
        return mail

    async def cells(self, spec: BucketSpec) -> Cells:
        return await NatsCells(self.connections[0], entropy=self.entropy).open(spec)

    async def kept(self, topic: str) -> int:
        body = {"subjects_filter": topic}
        answer = await ask(self.connections[0], f"STREAM.INFO.{stream_of(topic).name}", body)
        subjects: dict[str, int] = answer["state"].get("subjects") or {}
        return sum(subjects.values())

    async def dead_letters(self, topic: str) -> Sequence[DeadLetter]:
        letters: list[DeadLetter] = []
        sequence = 1
        while True:
            try:
                body = {"seq": sequence, "next_by_subj": f"dlq.{topic}.>"}
                answer = await ask(self.connections[0], "STREAM.MSG.GET.CREWLET_DLQ", body)
            except ApiError:
                return letters
            message: dict[str, Any] = answer["message"]
            headers = parse_headers(base64.b64decode(message["hdrs"]))
            data = base64.b64decode(message.get("data", ""))
            letters.append(DeadLetter(headers["Crewlet-Message-Id"], data, headers))
            sequence = int(message["seq"]) + 1


@asynccontextmanager
async def twin_world(*, delivery_budget: int = 25, ack_window_s: float = 30.0) -> AsyncGenerator[TwinWorld]:
    world = TwinWorld(delivery_budget=delivery_budget, ack_window_s=ack_window_s)
    try:
        yield world
    finally:
        await asyncio.gather(*(client.stop() for client in world.clients))


@asynccontextmanager
async def nats_world(
    urls: tuple[str, ...], *, delivery_budget: int = 25, ack_window_s: float = 30.0, replicas: int = 1
) -> AsyncGenerator[NatsWorld]:
    async with AsyncExitStack() as stack:
        yield NatsWorld(urls, stack, delivery_budget=delivery_budget, ack_window_s=ack_window_s, replicas=replicas)


async def flap(
    world: NatsWorld, inbox: Subscription, *, flaps: int, events: int, seed: int, options: BatchOptions | None = None
) -> Counter[str]:
    """Attach and detach at random instants from two clients while mail flows; what each event was handled."""
    rng = random.Random(seed)
    nodes = [await world.client(), await world.client()]
    sender = await world.client()
    await sender.ensure_subscription(inbox)
    handled: Counter[str] = Counter()

    async def handler(deliveries: Sequence[Delivery]) -> Outcome:
        handled.update(delivery.id for delivery in deliveries)
        return Ack()

    async def load() -> None:
        for number in range(events):
            await sender.publish(inbox.topic, b"x", message_id=f"e{number}")

    loading = asyncio.create_task(load())
    for number in range(flaps):
        attachment = await nodes[number % 2].attach(inbox, handler, good_until=math.inf, options=options)
        await asyncio.sleep(rng.uniform(0.0, 0.005))
        attachment.quiesce()
        await until(world, lambda attachment=attachment: not attachment.is_handling)
        await attachment.detach()
    await loading
    await nodes[0].attach(inbox, handler, good_until=math.inf, options=options)
    await until(world, lambda: len(handled) == events)
    await until_backlog(world, sender, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
    return handled
