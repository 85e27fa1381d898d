"""One id is one mail: whichever node takes the repeat, and whatever became of the first answer."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import nats_world

from crewlet.company.model import Company, Seat
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import NoMailbox
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import LiveMail

pytestmark = pytest.mark.real

COMPANY = Company("Desk", (Seat("writer"),))
INBOX = topics.inbox("writer")


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


def outbox(mail: LiveMail, world: Any, node: str) -> Outbox:
    return Outbox(mail, lambda: COMPANY, world.clock, node)


def event(message_id: str, source: str) -> Envelope:
    return Envelope(id=message_id, type="external_notification", timestamp="t", source=source, to="writer")


async def test_a_mail_whose_answers_were_lost_on_one_node_is_repeated_on_another_and_kept_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls) as world:
        first, second = await world.client(), await world.client()
        await first.ensure_subscription(INBOX)
        connection = world.connections[0]
        request = connection.request

        async def lose_answers(subject: str, *args: Any, **kwargs: Any) -> Any:
            answer = await request(subject, *args, **kwargs)
            if subject == INBOX.topic:
                raise Unavailable("lost on purpose")
            return answer

        monkeypatch.setattr(connection, "request", lose_answers)
        with pytest.raises(Unavailable):
            await outbox(first, world, "n1").post(event("order-1", "person"))
        # Stamped by another node, and so not the same bytes: the id alone decides.
        published = await outbox(second, world, "n2").post(event("order-1", "program"))
        assert published.is_duplicate
        assert await world.kept(INBOX.topic) == 1


async def test_many_nodes_that_send_one_id_at_once_send_one_mail(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mails = [await world.client() for _ in range(4)]
        await mails[0].ensure_subscription(INBOX)
        answers = await asyncio.gather(
            *(outbox(mail, world, f"n{number}").post(event("order-1", "person")) for number, mail in enumerate(mails))
        )
        assert sorted(answer.is_duplicate for answer in answers) == [False, True, True, True]
        assert len({answer.sequence for answer in answers}) == 1
        assert await world.kept(INBOX.topic) == 1


async def test_an_id_that_was_refused_for_want_of_a_mailbox_is_taken_by_any_node_later(server: Server) -> None:
    async with nats_world(server.urls) as world:
        first, second = await world.client(), await world.client()
        for mail in (first, second):
            with pytest.raises(NoMailbox):
                await outbox(mail, world, "n1").post(event("order-1", "person"))
        await second.ensure_subscription(INBOX)
        published = await outbox(first, world, "n1").post(event("order-1", "person"))
        assert not published.is_duplicate
        assert await world.kept(INBOX.topic) == 1
