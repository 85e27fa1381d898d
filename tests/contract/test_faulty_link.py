"""What the link between a client and a broker promises the tests that use it."""

from contextlib import AsyncExitStack

import pytest
from cells_worlds import NatsWorld

from crewlet.ports.cells import BucketSpec
from crewlet.testing.brokers import Server
from crewlet.testing.faulty_link import Frame

pytestmark = pytest.mark.real

MANY = 2_000


async def test_what_was_held_is_stored_once_it_is_delivered(server: Server) -> None:
    async with AsyncExitStack() as stack:
        nats = NatsWorld(server.urls, stack=stack)
        store, link = await nats.store_over_link()
        cells = await store.open(BucketSpec(nats.name("held")))
        for each in range(MANY):
            head = f"PUB $KV.{cells.name}.k{each} _INBOX.held.{each} 1"
            link.held.append(Frame(head.encode(), b"1"))
        await link.deliver_held()
        assert await cells.read(f"k{MANY - 1}") is not None
