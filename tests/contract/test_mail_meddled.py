"""Consumers that somebody changes by hand under a running seat: mended, or named, and no mail goes."""

import asyncio
import math
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats.jsapi import ask
from crewlet.mail import topics
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, send, until

pytestmark = pytest.mark.real

INBOX = topics.inbox("alice")
NAME = "CREWLET_AGENT.agent-alice"
SHOWN_BY_THEMSELVES = {"headers_only", "max_expires", "priority_groups"}
"""By mail without its text, or by pulls that are refused; the others are seen when the link is made anew."""


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def config(world: NatsWorld) -> dict[str, Any]:
    return (await ask(world.connections[0], f"CONSUMER.INFO.{NAME}"))["config"]


async def change(world: NatsWorld, **settings: Any) -> None:
    body = {"stream_name": "CREWLET_AGENT", "action": "update", "config": {**await config(world), **settings}}
    await ask(world.connections[0], f"CONSUMER.CREATE.{NAME}.{INBOX.topic}", body)


async def link_anew(world: NatsWorld) -> None:
    """As when a broker restarts, or the network did: then readers look at what they read from."""
    connection = world.connections[0]
    breaks = connection.breaks
    connection.client.cut()
    await until(world, lambda: connection.breaks > breaks and connection.is_connected)


def _is_mended(before: Any, found: Any, whole: Any) -> bool:
    if isinstance(before, dict):  # who made it is told to nobody any more
        return isinstance(found, dict) and {"crewlet_topic", "crewlet_group"} <= found.keys()
    return found in (whole, before)


@pytest.mark.parametrize(
    ("meddled", "whole"),
    [
        ({"headers_only": True}, False),
        ({"max_deliver": 1}, -1),
        ({"ack_wait": 300_000_000}, None),
        ({"inactive_threshold": 3_600_000_000_000}, 0),
        ({"max_expires": 100_000_000}, None),
        ({"max_batch": 1}, None),
        ({"max_bytes": 1}, None),
        ({"backoff": [100_000_000, 200_000_000], "max_deliver": 3}, None),
        ({"priority_groups": ["x"], "priority_policy": "overflow"}, None),
        ({"metadata": {}}, None),
        ({"durable_name": ""}, None),
    ],
)
async def test_a_consumer_that_was_changed_by_hand_under_its_reader_is_mended_and_loses_no_mail(
    server: Server, meddled: dict[str, Any], whole: Any
) -> None:
    async with nats_world(server.urls, ack_window_s=2.0) as world:
        mail, desk = await world.client(), Desk()
        await mail.attach(INBOX, desk, good_until=math.inf)
        before = await config(world)
        await change(world, **meddled)
        if not SHOWN_BY_THEMSELVES & meddled.keys():
            await link_anew(world)
        await send(mail, INBOX.topic, "e1")
        name = next(iter(meddled))

        give_up_at = time.monotonic() + 30.0
        while not _is_mended(before.get(name), (await config(world)).get(name), whole):
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.05)
        await until(world, lambda: desk.ids == ["e1"])
        assert [letter.id for letter in (await mail.dead_letters.page(">")).letters] == []
        assert list(await mail.list_subscriptions(INBOX.topic)) == [INBOX]


async def test_a_consumer_that_was_paused_by_hand_is_named_and_goes_on_once_a_person_resumes_it(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=2.0) as world:
        mail, desk = await world.client(), Desk()
        with capture_logs() as logs:
            await mail.attach(INBOX, desk, good_until=math.inf)
            await ask(world.connections[0], f"CONSUMER.PAUSE.{NAME}", {"pause_until": "2100-01-01T00:00:00Z"})
            await link_anew(world)
            await send(mail, INBOX.topic, "e1")
            await until(world, lambda: any(line["event"] == "mailbox_paused" for line in logs))
        backlog = await mail.waiting(INBOX)
        assert backlog is not None and backlog.is_paused and backlog.waiting == 1 and desk.ids == []
        await ask(world.connections[0], f"CONSUMER.PAUSE.{NAME}", {})
        await until(world, lambda: desk.ids == ["e1"])
        resumed = await mail.waiting(INBOX)
        assert resumed is not None and not resumed.is_paused
