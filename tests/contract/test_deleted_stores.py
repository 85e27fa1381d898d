"""What whoever reads or writes is told of a bucket or stream that somebody deleted under a running node."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.ports.cells import BucketSpec, Cells, Unknown
from crewlet.ports.errors import Unavailable
from crewlet.testing.brokers import Server, one_server

pytestmark = pytest.mark.real

LEDGER = BucketSpec("crewlet_ledger", max_age_s=3.0)
BUCKET_GONE = "the bucket crewlet_ledger was deleted, with all that was in it; restart a node, which makes it anew"
STREAM_GONE = "the stream {} was deleted, with all that was in it; restart a node, which makes it anew"


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


@pytest.fixture
async def connection(server: Server) -> AsyncGenerator[Connection]:
    opened = await Connection.open(BrokerAddress((server.url,)), clock=SystemClock(), startup_timeout_s=20)
    yield opened
    await opened.close()


@pytest.fixture
async def deleted(connection: Connection) -> Cells:
    cells = await NatsCells(connection, entropy=SystemEntropy()).open(LEDGER)
    await cells.create("a.b", b"1")
    await ask(connection, "STREAM.DELETE.KV_crewlet_ledger")
    return cells


async def _watch(cells: Cells) -> None:
    async with cells.watch():
        pass


async def test_whoever_reads_a_deleted_bucket_is_told_so(deleted: Cells) -> None:
    for read in (
        deleted.read("a.b"),
        deleted.list(),
        deleted.mark(),
        deleted.purge_markers(0.0, lambda: None),
        _watch(deleted),
    ):
        with pytest.raises(Unavailable) as raised:
            await read
        assert str(raised.value) == BUCKET_GONE


async def test_whoever_writes_to_a_deleted_bucket_is_told_so_and_nobody_is_asked_before_the_write_has_failed(
    deleted: Cells, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, asked = connection.post, list[str]()

    def noted(subject: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(subject.removesuffix(".KV_crewlet_ledger"))
        return post(subject, *args, **kwargs)

    monkeypatch.setattr(connection, "post", noted)
    for write in (
        deleted.create("a.b", b"2"),
        deleted.replace("a.b", b"2", expect=1),
        deleted.remove("a.b", expect=1),
    ):
        asked.clear()
        assert await write == Unknown(BUCKET_GONE)
        assert asked[:-1] == ["$KV.crewlet_ledger.a.b"] * (len(asked) - 1)
        assert asked[-1] == "$JS.API.STREAM.INFO"


async def test_a_publish_to_a_deleted_stream_says_so(connection: Connection) -> None:
    mail = NatsMail(connection, clock=SystemClock(), entropy=SystemEntropy(), ack_window_s=30.0)
    await mail.start()
    for stream, topic in (
        ("CREWLET_EVENTS", topics.event("turn_completed")),
        ("CREWLET_AGENT", topics.inbox("a").topic),
    ):
        await ask(connection, f"STREAM.DELETE.{stream}")
        with pytest.raises(Unavailable) as raised:
            await mail.publish(topic, b"x", message_id="m1")
        assert str(raised.value).endswith(STREAM_GONE.format(stream))
        assert "electing" not in str(raised.value)
