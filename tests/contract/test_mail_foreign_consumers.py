"""Consumers on the streams of mail that are not Crewlet's."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats.jsapi import ask
from crewlet.mail import topics
from crewlet.ports.errors import Unavailable
from crewlet.testing.brokers import Server, one_server

pytestmark = pytest.mark.real

ALICE, BOB = topics.inbox("alice"), topics.inbox("bob")
AS_ALICE = {"crewlet_topic": ALICE.topic, "crewlet_group": ALICE.group}


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def make(world: NatsWorld, name: str, topic: str, *, is_durable: bool = True, **more: Any) -> None:
    config = {"name": name, "filter_subject": topic, "ack_policy": "explicit", **more}
    if is_durable:
        config["durable_name"] = name
    body = {"stream_name": "CREWLET_AGENT", "action": "create", "config": config}
    await ask(world.connections[0], f"CONSUMER.CREATE.CREWLET_AGENT.{name}.{topic}", body)


@pytest.mark.proves("SU-08")
async def test_a_listing_leaves_out_what_does_not_last_and_what_bears_another_name_than_its_own(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        await mail.ensure_subscription(ALICE)
        await make(world, "watching", ALICE.topic, is_durable=False, metadata=AS_ALICE)
        await make(world, "agent-bob", BOB.topic)
        await make(world, "copied", ALICE.topic, metadata=AS_ALICE)
        with capture_logs() as logs:
            assert await mail.list_subscriptions(topics.ALL_MAILBOXES) == [ALICE]
        unnamed = [line["consumer"] for line in logs if line["event"] == "jetstream_subscription_unnamed"]
        assert sorted(unnamed) == ["agent-bob", "copied"]


async def test_a_name_that_a_consumer_of_another_topic_has_is_said_and_that_one_is_left_alone(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        await make(world, "agent-bob", ALICE.topic, max_deliver=3)
        with capture_logs() as logs, pytest.raises(Unavailable, match=r"agent-bob is a consumer of 'crewlet\.agent\."):
            await mail.ensure_subscription(BOB)
        assert [line["topic"] for line in logs if line["event"] == "subscription_foreign"] == [BOB.topic]
        found = await ask(world.connections[0], "CONSUMER.INFO.CREWLET_AGENT.agent-bob")
        assert (found["config"]["filter_subject"], found["config"]["max_deliver"]) == (ALICE.topic, 3)
