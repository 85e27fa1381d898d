"""What a real broker keeps of removed keys, and how that is forgotten."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.nats import cells as module
from crewlet.adapters.nats import markers
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.translate import StoredMessage
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells
from crewlet.ports.errors import Unavailable
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.cells import done, forget_removed, value_of
from crewlet.testing.faulty_link import Frame

pytestmark = pytest.mark.real


@pytest.fixture
async def nats(server: Server) -> AsyncGenerator[NatsWorld]:
    async with AsyncExitStack() as stack:
        yield NatsWorld(server.urls, stack=stack)


def still() -> None: ...


async def messages_in(connection: Connection, bucket: str) -> int:
    """How many messages a bucket's stream holds, markers included."""
    return int((await ask(connection, f"STREAM.INFO.KV_{bucket}"))["state"]["messages"])


async def half_removed(cells: Cells, count: int) -> list[str]:
    """Make so many keys and remove every second one; returns those that are there."""
    keys = [f"seat.{number:04}" for number in range(count)]
    made = [done(result) for result in await asyncio.gather(*(cells.create(key, key.encode()) for key in keys))]
    gone = zip(keys[::2], made[::2], strict=True)
    for result in await asyncio.gather(*(cells.remove(key, expect=revision) for key, revision in gone)):
        done(result)
    return keys[1::2]


async def test_old_markers_are_purged_at_their_own_revision_and_nothing_else_is(nats: NatsWorld) -> None:
    connection, name = await nats.connect(), nats.name("markers")
    cells = await NatsCells(connection, entropy=SystemEntropy()).open(BucketSpec(name))
    for key in ("gone", "kept", "again"):
        revision = done(await cells.create(key, b"1"))
        if key != "kept":
            done(await cells.remove(key, expect=revision))
    last = done(await cells.create("again", b"2"))
    assert await messages_in(connection, name) == 3
    assert await cells.purge_markers(3600.0, still) == 0
    assert await messages_in(connection, name) == 3
    assert await cells.purge_markers(0.0, still) == 1
    assert await messages_in(connection, name) == 2
    assert {entry.key: entry.value for entry in await cells.list()} == {"kept": b"1", "again": b"2"}
    assert await cells.purge_markers(0.0, still) == 0
    assert done(await cells.create("gone", b"3")) > last
    assert (await cells.mark()).last_revision > last


@pytest.mark.parametrize("count", [150, 1200], ids=["few", "so many that a consumer reads them"])
async def test_many_markers_are_purged_in_batches_and_each_batch_is_told_of(nats: NatsWorld, count: int) -> None:
    connection, name = await nats.connect(), nats.name("many")
    cells = await NatsCells(connection, entropy=SystemEntropy()).open(BucketSpec(name))
    there = await half_removed(cells, count)
    turns: list[None] = []
    await forget_removed(cells, lambda: turns.append(None))
    assert len(turns) >= 1 + -(-(count // 2) // markers.AT_ONCE)
    assert await messages_in(connection, name) == len(there)
    assert [entry.key for entry in await cells.list()] == there


@pytest.mark.parametrize("lost", ["requests", "answers"])
async def test_a_batch_in_which_some_is_lost_on_the_way_loses_no_key_and_leaves_no_marker_for_good(
    nats: NatsWorld, lost: str
) -> None:
    store, link = await nats.store_over_link()
    connection, name = await nats.connect(), nats.name("lossy")
    cells = await store.open(BucketSpec(name))
    there = await half_removed(cells, 200)
    passed = 0

    def lose(frame: Frame) -> bytes | None:
        nonlocal passed
        is_one = b"$JS.API.STREAM.PURGE" in frame.head or (frame.body is not None and b'"purged":' in frame.body)
        passed += is_one
        return None if is_one and passed % 10 == 3 else frame.raw

    if lost == "requests":
        link.on_request = lose
    else:
        link.on_answer = lose
    with pytest.raises(Unavailable, match="of 100 purged"):
        await cells.purge_markers(0.0, still)
    assert link.lost > 0
    if lost == "requests":
        assert await messages_in(connection, name) >= len(there) + link.lost
    link.heal()
    await forget_removed(cells)
    assert await messages_in(connection, name) == len(there)
    assert [entry.key for entry in await cells.list()] == there


async def test_a_key_written_again_before_its_marker_is_purged_stays(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = await (await nats.store()).open(BucketSpec(nats.name("racing")))
    for key in ("k", "other"):
        done(await cells.remove(key, expect=done(await cells.create(key, b"1"))))
    written: list[int] = []

    async def written_first(lane: Lane, stream: str, found: list[StoredMessage], *args: Any, **how: Any) -> int:
        assert len(found) == 2
        written.append(done(await cells.create("k", b"2")))
        return await markers.purge_all(lane, stream, found, *args, **how)

    monkeypatch.setattr(module, "purge_all", written_first)
    assert await cells.purge_markers(0.0, still) == 1
    entry = await cells.read("k")
    assert entry is not None and ([entry.revision], entry.value) == (written, b"2")


async def test_a_key_of_a_bucket_that_was_made_anew_meanwhile_stays(
    nats: NatsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, name = await nats.connect(), nats.name("anew")
    store = NatsCells(connection, entropy=SystemEntropy())
    cells = await store.open(BucketSpec(name))
    done(await cells.remove("k", expect=done(await cells.create("k", b"1"))))

    async def made_anew_first(*args: Any, **how: Any) -> int:
        await ask(connection, f"STREAM.DELETE.KV_{name}")
        anew = await store.open(BucketSpec(name))
        assert done(await anew.create("k", b"2")) == 1
        return await markers.purge_all(*args, **how)

    monkeypatch.setattr(module, "purge_all", made_anew_first)
    with pytest.raises(Unavailable, match="made anew"):
        await cells.purge_markers(0.0, still)
    assert await value_of(cells, "k") == b"2"
