"""Dead letters on three members, one of which led their stream, stood still, and does not know that it was deposed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from mail_worlds import nats_world

from crewlet.adapters.nats.address import BrokerAddress
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.deadletters import NatsDeadLetters
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.publishing import publish_raw
from crewlet.mail import topics
from crewlet.mail.deadletters import letter_id, letter_of
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Delivery
from crewlet.testing.brokers import Cluster, three_members
from crewlet.testing.faulty_link import FaultyLink

pytestmark = [pytest.mark.cluster, pytest.mark.real]

INBOX = topics.inbox("writer")
ROUNDS = 3
T = TypeVar("T")


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    with three_members(tmp_path) as running:
        yield running


async def test_a_deposed_leader_tells_of_no_letter_that_it_is_gone(cluster: Cluster) -> None:
    async with nats_world(cluster.urls, replicas=3) as world:
        await world.client()
        for _ in range(ROUNDS):
            await one_round(cluster, world.connections[0])


async def one_round(cluster: Cluster, scout: Connection) -> None:
    info = await at_last(lambda: ask(scout, "STREAM.INFO.CREWLET_DLQ"))
    leader = cluster.index(info["cluster"]["leader"])
    other = next(member for member in range(3) if member != leader)
    async with FaultyLink(cluster.members[leader].url) as link, contextlib.AsyncExitStack() as stack:
        asking, peer = [await connected(url, scout, stack) for url in (link.url, cluster.members[other].url)]
        letters = NatsDeadLetters(asking, replicas=3, require_live=lambda: None)
        link.answer_pings()
        cluster.freeze(leader)
        try:
            written = NatsDeadLetters(peer, replicas=3, require_live=lambda: None)
            shown, dropped = [await at_last(lambda: bury(peer)) for _ in range(2)]
            got = asyncio.create_task(answer_of(letters.get(shown)))
            removed = asyncio.create_task(answer_of(letters.remove(dropped)))
            await asyncio.sleep(0)
        finally:
            cluster.thaw(leader)
        letter = await at_last(lambda: written.get(shown))
        assert letter is not None
        assert await got in (letter, "unknown")
        assert await removed in (True, "unknown")


async def bury(connection: Connection) -> str:
    """A letter of its own each time; returns its id."""
    now = datetime.now(UTC)
    delivery = Delivery(f"m{now.timestamp()}", b"x", 1, 25, 0, now)
    letter = letter_of(INBOX, delivery, {}, "it broke", ())
    stored = await publish_raw(connection, letter.subject, b"x", letter.headers, message_id=letter.subject)
    return letter_id(stored.sequence, letter.subject)


async def connected(url: str, like: Connection, stack: contextlib.AsyncExitStack) -> Connection:
    connection = await Connection.open(
        BrokerAddress((url,)), clock=like.clock, startup_timeout_s=30.0, replicas=like.replicas
    )
    stack.push_async_callback(connection.close)
    return connection


async def answer_of(asking: Awaitable[T]) -> T | str:
    try:
        return await asking
    except Unavailable:
        return "unknown"


async def at_last(ask_once: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Unavailable):
                return await ask_once()
            await asyncio.sleep(0.1)
