"""Acks of a batch on a real broker: most of them are asked about by the last one's answer only."""

import asyncio
import math

import pytest
from mail_worlds import nats_world

from crewlet.ports.mail import Ack, BatchOptions, Subscription
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.mailworld import Desk, send, until, until_backlog, when
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = [pytest.mark.real, pytest.mark.alone]

WINDOW_S = 120.0
"""Longer than any wait here: nothing comes back at the end of it."""
BATCH = BatchOptions(max_messages=10)


def is_ack(frame: Frame) -> bool:
    return b" $JS.ACK." in frame.head and frame.body is not None and frame.body.endswith(b"+ACK")


def has_question(frame: Frame) -> bool:
    return b" _INBOX." in frame.head


async def test_a_batch_asks_about_its_last_ack_only(server: Server) -> None:
    acks: list[bool] = []

    def note(frame: Frame) -> bytes:
        if is_ack(frame):
            acks.append(has_question(frame))
        return frame.raw

    async with FaultyLink(server.url, on_request=note) as link, nats_world((link.url,), ack_window_s=WINDOW_S) as world:
        mail, inbox = await world.client(), Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, *(f"e{n}" for n in range(10)))
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=BATCH)
        await until(world, lambda: len(desk.ids) == 10 and attachment.in_hand == 0)
        backlog = await until_backlog(world, mail, inbox, lambda found: found.in_hand == 0)
        assert backlog.waiting == 0
        assert acks[-1]
        assert acks.count(True) <= 2  # the first pull may have brought one alone
        await attachment.detach()


async def test_an_ack_before_a_long_turn_is_proven_at_the_next_renewal(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=WINDOW_S) as world:
        mail, inbox = await world.client(), Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1", "e2", "e3")
        turn = asyncio.Event()
        desk = Desk([Ack(), Ack(), when(turn, Ack())])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=BATCH)
        await until(world, lambda: desk.ids == ["e1", "e2", "e3"])
        attachment.prolong(math.inf)
        await until(world, lambda: attachment.in_hand == 1)
        await until_backlog(world, mail, inbox, lambda found: found.in_hand == 1)
        turn.set()
        await until(world, lambda: attachment.in_hand == 0)
        await attachment.detach()


async def test_acks_that_a_broken_connection_lost_are_said_again(server: Server) -> None:
    loses = True

    def lose_plain_acks(frame: Frame) -> bytes | None:
        return None if loses and is_ack(frame) and not has_question(frame) else frame.raw

    async with (
        FaultyLink(server.url, on_request=lose_plain_acks) as link,
        nats_world((link.url,), ack_window_s=WINDOW_S) as world,
    ):
        mail, inbox = await world.client(), Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1", "e2", "e3")
        turn = asyncio.Event()
        desk = Desk([Ack(), Ack(), when(turn, Ack())])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=BATCH)
        await until(world, lambda: desk.ids == ["e1", "e2", "e3"] and link.lost >= 1)
        loses = False
        link.cut()
        await until(world, lambda: attachment.in_hand == 1)
        await until_backlog(world, mail, inbox, lambda found: found.in_hand == 1)
        turn.set()
        await until(world, lambda: attachment.in_hand == 0)
        backlog = await until_backlog(world, mail, inbox, lambda found: found.in_hand == 0)
        assert backlog.waiting == 0
        assert desk.ids == ["e1", "e2", "e3"]
        await attachment.detach()
