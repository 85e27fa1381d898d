"""Consumers that show mail and give none, as of a broker that lost track of who asks: noticed, and got moving."""

import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats import stall
from crewlet.adapters.nats.jsapi import ask
from crewlet.mail import topics
from crewlet.testing.brokers import Cluster, Server, one_server, three_members
from crewlet.testing.contracts.mailworld import Desk, send, until, until_backlog

pytestmark = pytest.mark.real

INBOX = topics.inbox("alice")
NAME = "CREWLET_AGENT.agent-alice"


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    with three_members(tmp_path) as running:
        yield running


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "LOOK_S", 1.0)
    monkeypatch.setattr(stall, "QUIET_S", 1.0)


def _lose_pulls(world: NatsWorld, monkeypatch: pytest.MonkeyPatch, is_lost: Callable[[str], bool]) -> list[str]:
    """Pulls of the first client never reach the consumer, as told by the inbox that is to hear of them; what was
    asked of the broker besides."""
    client = world.connections[0].client
    tell, post = client.send, client.post
    asked: list[str] = []

    def lose(subject: str, reply: str, payload: bytes) -> None:
        if ".MSG.NEXT." not in subject or not is_lost(reply.rpartition(".")[0]):
            tell(subject, reply, payload)

    def note(subject: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(subject)
        return post(subject, *args, **kwargs)

    monkeypatch.setattr(client, "send", lose)
    monkeypatch.setattr(client, "post", note)
    return asked


async def test_a_reader_whose_pulls_the_consumer_does_not_see_says_so_and_asks_over_a_new_inbox(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls) as world:
        mail, sender, desk = await world.client(), await world.client(), Desk()
        inboxes: list[str] = []

        def is_of_the_first(inbox: str) -> bool:
            inboxes.append(inbox)
            return inbox == inboxes[0]

        _lose_pulls(world, monkeypatch, is_of_the_first)
        with capture_logs() as logs:
            attachment = await mail.attach(INBOX, desk, good_until=math.inf)
            await send(sender, INBOX.topic, "e1", "e2")
            await until(world, lambda: desk.ids == ["e1", "e2"], within_s=30.0)
        (told,) = [line for line in logs if line["event"] == "mailbox_stalled"]
        assert (told["topic"], told["waiting"]) == (INBOX.topic, "2")
        assert [line["tries"] for line in logs if line["event"] == "mailbox_moves_again"] == [1]
        await until_backlog(world, sender, INBOX, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert await attachment.detach() is True
        backlog = await sender.waiting(INBOX)
        assert backlog is not None and backlog.open_pulls == 0


async def test_a_reader_whose_inbox_is_empty_asks_nothing_of_its_consumer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls) as world:
        mail, desk = await world.client(), Desk()
        await mail.attach(INBOX, desk, good_until=math.inf)
        asked = _lose_pulls(world, monkeypatch, lambda _: False)
        await world.clock.sleep(5.0)
        assert {subject for subject in asked if ".CONSUMER." in subject} == set()
        assert 1 <= asked.count("$JS.API.STREAM.INFO.CREWLET_AGENT") <= 5


async def test_a_consumer_that_is_paused_under_a_reader_that_waits_is_named(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail, desk = await world.client(), Desk()
        with capture_logs() as logs:
            await mail.attach(INBOX, desk, good_until=math.inf)
            await ask(world.connections[0], f"CONSUMER.PAUSE.{NAME}", {"pause_until": "2100-01-01T00:00:00Z"})
            await send(mail, INBOX.topic, "e1")
            await until(world, lambda: any(line["event"] == "mailbox_paused" for line in logs), within_s=30.0)
        assert not any(line["event"] == "mailbox_stalled" for line in logs) and desk.ids == []


@pytest.mark.cluster
async def test_a_consumer_that_gives_nothing_over_a_new_inbox_either_gets_another_leader_and_loses_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(cluster.urls, replicas=3) as world:
        mail, sender, desk = await world.client(), await world.client(), Desk()
        stepped_down = f"$JS.API.CONSUMER.LEADER.STEPDOWN.{NAME}"
        asked: list[str] = []
        asked = _lose_pulls(world, monkeypatch, lambda _: stepped_down not in asked)
        await mail.ensure_subscription(INBOX)
        before = (await ask(world.connections[1], f"CONSUMER.INFO.{NAME}"))["cluster"]["leader"]
        with capture_logs() as logs:
            await mail.attach(INBOX, desk, good_until=math.inf)
            await send(sender, INBOX.topic, *(f"e{number}" for number in range(5)))
            await until(world, lambda: len(desk.ids) == 5, within_s=60.0)
        assert desk.ids == [f"e{number}" for number in range(5)]
        assert any(line["event"] == "mailbox_leader_changed" for line in logs)
        assert (await ask(world.connections[1], f"CONSUMER.INFO.{NAME}"))["cluster"]["leader"] != before
        await until_backlog(world, sender, INBOX, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
