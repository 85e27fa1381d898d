"""A write whose first try left over a connection that broke, and reaches the store after the call has answered."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells, Refused, Unknown
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.cells import done, value_of
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = pytest.mark.real


class World:
    """A bucket over a link, and the same one over a connection that is whole."""

    def __init__(self, cells: Cells, witness: Cells, link: FaultyLink, connection: Connection) -> None:
        self.cells = cells
        self.witness = witness
        self.link = link
        self._connection = connection

    async def empty(self, key: str) -> None:
        """As when it ages out."""
        await ask(self._connection, f"STREAM.PURGE.KV_{self.cells.name}", {"filter": f"$KV.{self.cells.name}.{key}"})

    async def make_anew(self) -> None:
        """Somebody deletes the bucket, and a node that starts makes it again."""
        await ask(self._connection, f"STREAM.DELETE.KV_{self.cells.name}")
        self.witness = await NatsCells(self._connection, entropy=SystemEntropy()).open(BucketSpec(self.cells.name))

    def break_at_the_next_write(self) -> None:
        """The next write stays on its way while the connection that carries it breaks."""
        self.link.hold_requests(self._breaks, 1)

    def _breaks(self, frame: Frame) -> bool:
        if frame.is_write:
            self.link.cut()
        return frame.is_write


@pytest.fixture
async def world(server: Server) -> AsyncGenerator[World]:
    async with AsyncExitStack() as stack:
        nats = NatsWorld(server.urls, stack=stack)
        store, link = await nats.store_over_link()
        connection = await nats.connect()
        spec = BucketSpec(nats.name("late"))
        cells = await store.open(spec)
        witness = await NatsCells(connection, entropy=SystemEntropy()).open(spec)
        yield World(cells, witness, link, connection)


async def test_a_create_that_may_arrive_when_its_key_is_free_again_is_unknown(world: World) -> None:
    done(await world.witness.create("k", b"other"))
    world.break_at_the_next_write()
    result = await world.cells.create("k", b"late")
    assert len(world.link.held) == 1
    await world.empty("k")
    await world.link.deliver_held()
    assert await value_of(world.witness, "k") == b"late"
    assert isinstance(result, Unknown)
    assert "may still arrive" in result.reason


async def test_a_replace_that_can_never_land_any_more_is_refused(world: World) -> None:
    first = done(await world.witness.create("k", b"1"))
    newer = done(await world.witness.replace("k", b"2", expect=first))
    world.break_at_the_next_write()
    result = await world.cells.replace("k", b"late", expect=first)
    assert result == Refused(newer)
    await world.link.deliver_held()
    await world.empty("k")
    world.break_at_the_next_write()
    assert await world.cells.replace("k", b"late", expect=newer) == Refused(None)
    await world.link.deliver_held()
    assert await world.witness.read("k") is None


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_replace_in_a_bucket_that_was_made_anew_is_unknown_while_it_may_arrive(
    world: World, is_there: bool
) -> None:
    done(await world.witness.create("other", b"1"))
    expect = done(await world.witness.create("k", b"1"))
    await world.make_anew()
    newest = done(await world.witness.create("k", b"new")) if is_there else None
    world.break_at_the_next_write()
    result = await world.cells.replace("k", b"late", expect=expect)
    if newest is not None:
        done(await world.witness.replace("k", b"newer", expect=newest))
    else:
        done(await world.witness.create("other", b"1"))
        done(await world.witness.create("k", b"new"))
    await world.link.deliver_held()
    assert await value_of(world.witness, "k") == b"late"
    assert isinstance(result, Unknown)
