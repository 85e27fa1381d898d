"""Mail in the hand of a process that died, where nobody but its successor can be alive."""

import asyncio
import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import cast

import pytest
from mail_worlds import nats_world

from crewlet.adapters.nats.mail import NatsMail
from crewlet.mail import topics
from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.ports.mail import Ack, BatchOptions, Delivery, Outcome
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, send, until

pytestmark = pytest.mark.real

WINDOW_S = 600.0
"""Far longer than any test waits: what comes back before was handed back."""


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def test_what_a_dead_process_had_in_hand_is_with_the_next_at_once_and_in_order(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=WINDOW_S) as world:
        dead = await world.client()
        inbox, other = topics.inbox("writer"), topics.inbox("other")
        for one in (inbox, other):
            await dead.ensure_subscription(one)
        await send(dead, inbox.topic, "m1", "m2", "m3", "m4")
        await send(dead, other.topic, "o1")
        taken: list[Delivery] = []

        async def hang(deliveries: Sequence[Delivery]) -> Outcome:
            taken.extend(deliveries)
            await asyncio.Event().wait()
            return Ack()

        options = BatchOptions(max_messages=3, partition_key=lambda _: "one")
        await dead.attach(inbox, hang, good_until=math.inf, options=options)
        await until(world, lambda: len(taken) == 3)
        backlog = await dead.waiting(inbox)
        assert backlog is not None and backlog.in_hand == 3
        world.connections[0].client.cut()

        mail = cast("NatsMail", await world.client())
        world.connections.pop(0)
        journal = Journal(await world.cells(DELIVERIES_BUCKET), "n1:b", world.clock)
        # m2 had come back before: the process died at its second delivery.
        await journal.taken(inbox, Delivery("m2", b"m2", taken[1].sequence, 2, 23, taken[1].published_at))
        assert await mail.give_back_left(journal) == 3
        desk = Desk()
        await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: len(desk.ids) == 4)
        assert desk.ids == ["m1", "m3", "m4", "m2"]
        assert await mail.give_back_left(journal) == 0
        backlog = await mail.waiting(other)
        assert backlog is not None and (backlog.waiting, backlog.in_hand) == (1, 0)
