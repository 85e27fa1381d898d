"""What somebody takes away from a real broker under a running company: an alarm, and nothing made anew in silence."""

import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats import attachment as attachment_module
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.streams import stream_names
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import NoMailbox
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, quiet, send, until

pytestmark = pytest.mark.real

INBOX = topics.inbox("alice")
LOST = "mail_stream_lost"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    monkeypatch.setattr(attachment_module, "DEAF_S", 0.3)
    with one_server(tmp_path) as running:
        yield running


def _alarms(logs: Sequence[Any]) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] == "error"]


async def test_a_deleted_stream_is_an_alarm_and_is_made_anew_only_by_a_start_that_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody looks before the whole stream is gone: while it is being deleted its mailboxes are missing before it is.
    monkeypatch.setattr(attachment_module, "DEAF_S", math.inf)
    async with nats_world(server.urls) as world:
        with capture_logs() as logs:
            mail = await world.client()
            desks = [Desk(), Desk()]
            attachments = [
                await mail.attach(topics.inbox(handle), desk, good_until=math.inf)
                for handle, desk in zip(("alice", "bob"), desks, strict=True)
            ]
            assert _alarms(logs) == []
            await ask(world.connections[0], "STREAM.DELETE.CREWLET_AGENT")
            monkeypatch.setattr(attachment_module, "DEAF_S", 0.3)
            await until(world, lambda: LOST in _alarms(logs))
            with pytest.raises(Unavailable, match="was deleted"):
                await send(mail, INBOX.topic, "e1")
            with pytest.raises(Unavailable, match="was deleted"):
                await mail.ensure_subscription(INBOX)
            await quiet(world, 1.0)
            assert _alarms(logs) == [LOST]  # one a stream, not one a seat
            assert "CREWLET_AGENT" not in await stream_names(world.connections[0])
            assert await attachments[1].detach() is True
        with capture_logs() as logs:
            starting = await world.client()
            # The seat that still pulls may see, rightly, that the new stream has no mailbox for it yet.
            assert [alarm for alarm in _alarms(logs) if alarm != "mailbox_gone"] == [LOST]
        await starting.ensure_subscription(INBOX)
        await send(mail, INBOX.topic, "e1")
        await until(world, lambda: desks[0].ids == ["e1"])


async def test_a_deleted_mailbox_is_an_alarm_and_comes_back_only_when_somebody_makes_it(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail, other = await world.client(), await world.client()
        desk = Desk()
        await mail.attach(INBOX, desk, good_until=math.inf)
        with capture_logs() as logs:
            assert await other.delete_subscription(INBOX) is True
            await until(world, lambda: "mailbox_gone" in _alarms(logs))
        with pytest.raises(NoMailbox):
            await send(other, INBOX.topic, "e1")
        assert await other.waiting(INBOX) is None
        await Mailboxes(other, world.clock, alarm_after_s=30.0).ensure(["alice"])
        await send(other, INBOX.topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])


async def test_a_publish_costs_the_same_in_a_company_of_any_size(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        handles = [f"seat-{number}" for number in range(100)]
        await Mailboxes(mail, world.clock, alarm_after_s=30.0).ensure(handles)
        asked = _count(world)
        with pytest.raises(NoMailbox):
            await send(mail, topics.inbox("nobody").topic, "e1")
        assert asked == ["$JS.API.CONSUMER.INFO.CREWLET_AGENT.agent-nobody"]
        asked.clear()
        await send(mail, topics.inbox("seat-7").topic, "e1")
        assert asked == ["$JS.API.CONSUMER.INFO.CREWLET_AGENT.agent-seat-7", "crewlet.agent.seat-7.inbox"]


def _count(world: NatsWorld) -> list[str]:
    connection = world.connections[0]
    request = connection.request
    asked: list[str] = []

    async def count(subject: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(subject)
        return await request(subject, *args, **kwargs)

    connection.request = count  # type: ignore[method-assign]
    return asked


async def test_an_attach_waits_out_an_election_but_not_its_lease(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        await mail.ensure_subscription(INBOX)
        connection = world.connections[0]
        request = connection.request
        refusals = iter(range(3))

        async def elect(subject: str, *args: Any, **kwargs: Any) -> Any:
            answer = await request(subject, *args, **kwargs)
            if ".CONSUMER.INFO." in subject and next(refusals, None) is not None:
                answer.data = b'{"error": {"code": 400, "err_code": 10008, "description": "electing"}}'
            return answer

        connection.request = elect  # type: ignore[method-assign]
        desk = Desk()
        await mail.attach(INBOX, desk, good_until=math.inf)
        assert next(refusals, None) is None
        refusals = iter(range(10_000))
        with pytest.raises(Unavailable):
            await mail.attach(INBOX, desk, good_until=world.clock.elapsed() + 1.0)
