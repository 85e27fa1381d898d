"""Lists of many keys, which a consumer delivers: whole, current, and from the leader where it cannot prove itself."""

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.nats import cells as module
from crewlet.adapters.nats.bulk import read_bulk
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.translate import StoredMessage
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.cells import done
from crewlet.testing.faulty_link import Frame

KEYS = 600


async def filled(server: Server, stack: AsyncExitStack) -> tuple[Cells, dict[str, int]]:
    world = NatsWorld(server.urls, stack=stack)
    connection = await world.connect(server.url)
    cells = await NatsCells(connection, entropy=SystemEntropy()).open(BucketSpec(world.name("many")))
    keys = [f"a.{number:03}" for number in range(KEYS)]
    results = await asyncio.gather(*(cells.create(key, b"0") for key in keys))
    done(await cells.create("b.other", b"0"))
    return cells, {key: done(result) for key, result in zip(keys, results, strict=True)}


@pytest.mark.real
async def test_a_list_of_many_keys_is_whole_and_no_older_than_the_call_while_all_of_them_are_written(
    server: Server,
) -> None:
    async with AsyncExitStack() as stack:
        cells, revisions = await filled(server, stack)

        async def write() -> None:
            while True:
                for key in revisions:
                    revisions[key] = done(await cells.replace(key, b"1", expect=revisions[key]))

        writing = asyncio.create_task(write())
        for _ in range(10):
            before = dict(revisions)
            entries = await cells.list("a.")
            assert [entry.key for entry in entries] == sorted(before)
            assert all(entry.revision >= before[entry.key] for entry in entries)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing


@pytest.mark.real
async def test_a_removed_key_is_not_in_a_list_of_many(server: Server) -> None:
    async with AsyncExitStack() as stack:
        cells, revisions = await filled(server, stack)
        done(await cells.remove("a.007", expect=revisions.pop("a.007")))
        assert [entry.key for entry in await cells.list("a.")] == sorted(revisions)


@pytest.mark.real
@pytest.mark.parametrize("kept", [0, 1, KEYS - 1])
async def test_what_the_consumer_does_not_deliver_is_read_from_the_leader(
    server: Server, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    async def some(connection: Connection, lane: Lane, stream: str, name: str, last: int) -> Sequence[StoredMessage]:
        delivered = await read_bulk(connection, lane, stream, name, last)
        assert len(delivered) == KEYS + 1
        return delivered[:kept]

    async with AsyncExitStack() as stack:
        cells, revisions = await filled(server, stack)
        monkeypatch.setattr(module, "read_bulk", some)
        entries = await cells.list("a.")
        assert {entry.key: entry.revision for entry in entries} == revisions


@pytest.mark.real
async def test_a_consumer_that_never_reaches_the_leaders_last_write_delivers_nothing(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        connection = await world.connect(server.url)
        spec = BucketSpec(world.name("behind"))
        cells = await NatsCells(connection, entropy=SystemEntropy()).open(spec)
        revision = done(await cells.create("k", b"1"))
        lane = Lane(connection)
        assert len(await read_bulk(connection, lane, f"KV_{spec.name}", "level", revision)) == 1
        assert await read_bulk(connection, lane, f"KV_{spec.name}", "behind", revision + 1) == ()


@pytest.mark.real
@pytest.mark.parametrize("lost", [1, 300, KEYS])
async def test_a_delivery_that_was_lost_on_the_way_proves_nothing_of_what_came_before_it(
    server: Server, lost: int
) -> None:
    """It may have been the newest value of a key that a member behind the leader delivered an older one of."""

    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        store, link = await world.store_over_link()
        spec = BucketSpec(world.name("gap"))
        cells = await store.open(spec)
        keys = [f"a.{number:03}" for number in range(KEYS)]
        results = await asyncio.gather(*(cells.create(key, b"0") for key in keys))
        revisions = {key: done(result) for key, result in zip(keys, results, strict=True)}
        last = done(await cells.create("b.other", b"0"))
        connection = await world.connect(link.url)
        deliveries: list[bytes] = []

        def judge(frame: Frame) -> bytes | None:
            if b" $JS.ACK." in frame.head:
                deliveries.append(frame.head)
                if len(deliveries) == lost:
                    return None
            return frame.raw

        link.on_answer = judge
        assert await read_bulk(connection, Lane(connection), f"KV_{spec.name}", "gap", last) == ()
        assert len(deliveries) >= lost
        deliveries.clear()
        entries = await cells.list("a.")
        assert {entry.key: entry.revision for entry in entries} == revisions
