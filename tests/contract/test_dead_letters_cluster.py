"""Dead letters on three members, one of which led their stream, stood still, and does not know that it was deposed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime
from functools import partial
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
from crewlet.ports.deadletters import DeadLetter
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Delivery
from crewlet.testing.brokers import Cluster, three_members
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = [pytest.mark.cluster, pytest.mark.real]

INBOX = topics.inbox("writer")
ROUNDS = 3
NO_MESSAGE = (
    b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response",'
    b'"error":{"code":404,"err_code":10037,"description":"no message found"}}'
)
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


async def test_a_server_that_is_behind_says_of_no_mail_that_it_was_not_buried(cluster: Cluster) -> None:
    async with nats_world(cluster.urls, replicas=3) as world, contextlib.AsyncExitStack() as stack:
        await world.client()
        scout = world.connections[0]
        link = await stack.enter_async_context(FaultyLink(cluster.members[0].url))
        asking = await connected(link.url, scout, stack)
        letters = NatsDeadLetters(asking, replicas=3, require_live=lambda: None)
        asked: list[bytes] = []
        link.on_request = lambda frame: asked.append(frame.raw) or frame.raw
        assert await letters.latest(INBOX, "m1") is None
        assert (await letters.page(">")).letters == []
        assert b"STREAM.PURGE" not in b"".join(asked), "a probe goes by itself: its user may have no right to purge"
        async with asyncio.timeout(60):
            while (await ask(scout, "STREAM.INFO.CREWLET_DLQ"))["state"]["messages"]:
                await asyncio.sleep(0.1)
        buried = await bury(scout, "m1")

        for is_behind in (True, False):
            link.on_answer = partial(of_the_past, is_behind=is_behind)
            with pytest.raises(Unavailable, match="not known" if is_behind else "another one has"):
                await letters.latest(INBOX, "m1")
        link.heal()
        letter = await letters.latest(INBOX, "m1")
        assert letter is not None and letter.id == buried


def of_the_past(frame: Frame, *, is_behind: bool) -> bytes | None:
    """No message is there, and if told so nothing as new as anything."""
    if frame.body is not None and b"stream_msg_get_response" in frame.body:
        return frame.with_payload(NO_MESSAGE)
    if frame.body is not None and b"stream_info_response" in frame.body and is_behind:
        past = frame.body.replace(b'"last_seq":', b'"last_seq":0,"was":').replace(b'"subjects":{', b'"were":{')
        return frame.with_payload(past)
    return frame.raw


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
            shown, dropped = [await at_last(lambda: bury(peer, now_id())) for _ in range(2)]
            buried = now_id()
            latest = await at_last(lambda: bury(peer, buried))
            found = asyncio.create_task(answer_of(letters.latest(INBOX, buried)))
            got = asyncio.create_task(answer_of(letters.get(shown)))
            removed = asyncio.create_task(answer_of(letters.remove(dropped)))
            await asyncio.sleep(0)
        finally:
            cluster.thaw(leader)
        letter = await at_last(lambda: written.get(shown))
        assert letter is not None
        assert await got in (letter, "unknown")
        assert await removed in (True, "unknown")
        newest = await found
        assert newest == "unknown" or (isinstance(newest, DeadLetter) and newest.id == latest)


def now_id() -> str:
    return f"m{datetime.now(UTC).timestamp()}"


async def bury(connection: Connection, message_id: str) -> str:
    """Returns the letter's id."""
    delivery = Delivery(message_id, b"x", 1, 25, 0, datetime.now(UTC))
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
