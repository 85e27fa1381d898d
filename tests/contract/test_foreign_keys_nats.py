"""What another program writes under a bucket's subjects, or asks under a signal's, costs nobody else anything."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest
from cells_worlds import NatsWorld
from structlog.testing import capture_logs

from crewlet.adapters.nats import cells as module
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.signals import ANSWERS_AT_ONCE, NatsSignals
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.ports.cells import BucketSpec, Cells, Gone, Level, Put
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.cells import done, next_event
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = pytest.mark.real

BAD = b"NATS/1.0\r\n\xff\xfe: \xff\r\n: \r\nno colon\r\n\r\n"
HEADERS = {
    "none": b"",
    "no_text": BAD,
    "like_a_heartbeat": b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
    "like_an_end": b"NATS/1.0 408 Request Timeout\r\n\r\n",
    "named_like_a_status": b"NATS/1.0\r\nStatus: 409\r\n\r\n",
}


async def publish(server: Server, *messages: tuple[bytes, bytes, bytes]) -> None:
    """Publish bytes as they are, by subject, reply subject and headers, and wait until the server has taken them in."""
    address = urlsplit(server.url)
    link = FaultyLink(server.url)
    assert address.hostname
    for subject, reply, headers in messages:
        words = b" ".join([b"HPUB", subject, *([reply] if reply else []), b"%d %d" % (len(headers), len(headers) + 1)])
        link.held.append(Frame(words, headers + b"x") if headers else Frame(plain(subject, reply), b"x"))
    await link.deliver_held()


def plain(subject: bytes, reply: bytes) -> bytes:
    return b" ".join([b"PUB", subject, *([reply] if reply else []), b"1"])


class World:
    def __init__(self, server: Server, connection: Connection, cells: Cells, witness: Cells) -> None:
        self.connection = connection
        self.cells = cells
        self.witness = witness
        self._server = server

    async def write(self, key: bytes, headers: bytes = b"") -> None:
        await publish(self._server, (f"$KV.{self.cells.name}.".encode() + key, b"_INBOX.written", headers))


@pytest.fixture
async def world(server: Server) -> AsyncGenerator[World]:
    async with AsyncExitStack() as stack:
        nats = NatsWorld(server.urls, stack=stack)
        connection, spec = await nats.connect(), BucketSpec(nats.name("foreign"))
        cells = await NatsCells(connection, entropy=SystemEntropy()).open(spec)
        yield World(server, connection, cells, await (await nats.store()).open(spec))


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("key", [b"seat.\xff\xfe", b"seat.plain"], ids=["no_text", "text"])
async def test_a_watch_goes_on_past_what_is_no_text(world: World, key: bytes, headers: bytes) -> None:
    with capture_logs() as logs:
        async with world.cells.watch("seat.") as events:
            assert await next_event(events) == Level()
            await world.write(key, headers)
            revision = done(await world.witness.create("seat.a", b"1"))
            foreign, ours = await next_event(events), await next_event(events)
            assert isinstance(foreign, Put) and foreign.entry.value == b"x"
            assert isinstance(ours, Put) and (ours.entry.key, ours.entry.revision) == ("seat.a", revision)
            removed = done(await world.witness.remove("seat.a", expect=revision))
            assert await next_event(events) == Gone("seat.a", removed)
    assert world.connection.breaks == 0
    assert not [each for each in logs if each["log_level"] in ("warning", "error")]
    assert "watch_broken" not in [each["event"] for each in logs]


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("many", [1, 1_000_000], ids=["by a consumer", "from the leader"])
async def test_a_list_holds_everything_of_ours_beside_what_is_no_text(
    world: World, monkeypatch: pytest.MonkeyPatch, headers: bytes, many: int
) -> None:
    monkeypatch.setattr(module, "_MANY", many)
    for key in (b"seat.\xff", b"seat.\xfe", b"seat.\xff.x", b"seat.foreign"):
        await world.write(key, headers)
    done(await world.witness.create("seat.a", b"1"))
    done(await world.witness.create("seat.b", b"1"))
    with capture_logs() as logs:
        keys = [entry.key for entry in await world.cells.list("seat.")]
    assert [key for key in keys if key.isascii()] == ["seat.a", "seat.b", "seat.foreign"]
    assert world.connection.breaks == 0
    assert not logs


async def test_questions_whose_reply_subject_is_no_text_leave_room_for_others(server: Server) -> None:
    async with AsyncExitStack() as stack:
        nats = NatsWorld(server.urls, stack=stack)
        connection = await nats.connect()
        answering, asking = NatsSignals(connection), NatsSignals(await nats.connect())

        async def answer(data: bytes) -> bytes:
            return data

        await answering.serve("ping", answer)
        question = topics.question("ping").encode()
        await publish(server, *[(question, b"to.\xff", BAD)] * (ANSWERS_AT_ONCE + 1))
        assert await asking.ask("ping", b"hello", timeout_s=10.0) == (b"hello",)
        assert connection.breaks == 0
        await answering.stop()
        await asking.stop()


async def test_an_answer_on_a_subject_that_is_no_text_costs_no_connection(server: Server) -> None:
    async with AsyncExitStack() as stack:
        connection = await NatsWorld(server.urls, stack=stack).connect()
        inbox = connection.client.new_inbox()

        def take(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            del reply, data, headers
            heard.append(subject)
            raise ValueError(subject)

        heard: list[bytes] = []
        await connection.client.listen(f"{inbox}.*", take)
        await connection.request("$JS.API.INFO", timeout_s=30.0)
        await publish(server, *[(f"{inbox}.".encode() + b"\xff", b"", BAD)] * 2)
        async with asyncio.timeout(60.0):
            await connection.request("$JS.API.INFO", timeout_s=30.0)
            while len(heard) < 2:
                await asyncio.sleep(0.01)
        assert connection.breaks == 0
