"""What waiting for mail costs a real broker: one open pull a seat, asked again when it expires, and nothing else."""

import asyncio
import math
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from mail_worlds import NatsWorld, nats_world

from crewlet.mail import topics
from crewlet.mail.feed import PULL_EXPIRY_S
from crewlet.ports.mail import Backlog, Mail
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, send, until, until_backlog

pytestmark = pytest.mark.real

SEATS = 20
INBOXES = [topics.inbox(f"seat-{number}") for number in range(SEATS)]


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def _attached(mail: Mail) -> list[Desk]:
    desks = [Desk() for _ in INBOXES]
    for inbox, desk in zip(INBOXES, desks, strict=True):
        await mail.attach(inbox, desk, good_until=math.inf)
    return desks


async def _sent_while(world: NatsWorld, seconds: float) -> tuple[int, float]:
    """How many messages the seats' client sent, and in how long."""
    client, began_at = world.connections[0].client, world.clock.elapsed()
    before = client.sent
    await world.clock.sleep(seconds)
    return client.sent - before, world.clock.elapsed() - began_at


def _is_one_pull(backlog: Backlog) -> bool:
    return backlog.open_pulls == 1


async def test_a_seat_that_waits_has_one_pull_open_and_polls_nothing(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail, sender = await world.client(), await world.client()
        desks = await _attached(mail)
        for inbox in INBOXES:
            await until_backlog(world, sender, inbox, _is_one_pull)
        sent, seconds = await _sent_while(world, 3.0)
        assert sent <= SEATS * (seconds / PULL_EXPIRY_S + 1)
        for how in (server.kill, server.terminate):
            await asyncio.to_thread(how)
            await until(world, lambda: not world.connections[0].is_connected)
            sent, _ = await _sent_while(world, 1.0)
            assert sent == 0
            await asyncio.to_thread(server.restart)
            await _everybody_hears(world, sender, desks, how.__name__)
        # What was asked again at the reconnect is the one pull of each seat before long.
        for inbox in INBOXES:
            await until_backlog(world, sender, inbox, _is_one_pull)
        sent, seconds = await _sent_while(world, 3.0)
        assert sent <= SEATS * (seconds / PULL_EXPIRY_S + 1)


async def test_a_seat_whose_consumer_is_away_asks_a_few_times_a_second_and_hears_when_it_is_back(
    server: Server,
) -> None:
    async with nats_world(server.urls) as world:
        mail, sender = await world.client(), await world.client()
        desks = await _attached(mail)
        await asyncio.gather(*(sender.delete_subscription(inbox) for inbox in INBOXES))
        sent, seconds = await _sent_while(world, 2.0)
        assert SEATS <= sent <= SEATS * (seconds / 0.05 + 1)
        await asyncio.gather(*(sender.ensure_subscription(inbox) for inbox in INBOXES))
        await _everybody_hears(world, sender, desks, "back")


async def _everybody_hears(world: NatsWorld, sender: Mail, desks: Sequence[Desk], word: str) -> None:
    await until(world, lambda: all(connection.is_connected for connection in world.connections))
    for inbox in INBOXES:
        await send(sender, inbox.topic, word)
    await until(world, lambda: all(desk.ids[-1:] == [word] for desk in desks), within_s=60.0)
    for inbox in INBOXES:
        await until_backlog(world, sender, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
