"""What people are told while the broker is away: sentences without the names of its API."""

import asyncio
import re
from collections.abc import Awaitable, Generator
from pathlib import Path

import pytest
from mail_worlds import nats_world
from nats import errors

from crewlet.adapters.nats.connection import unanswered
from crewlet.adapters.nats.jsapi import parse
from crewlet.adapters.nats.translate import NO_LEADER, Fault
from crewlet.mail import topics
from crewlet.mail.pauses import PAUSES_BUCKET
from crewlet.ports.cells import Unknown
from crewlet.ports.errors import NotTaken, Unavailable
from crewlet.testing.brokers import Server, one_server

API_NAMES = re.compile(r"\$JS|\$KV|KV_|STREAM\.|CONSUMER\.|MSG\.|CREWLET_|JetStream|crewlet\.|crewlet_|<|Error\(")


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def sentence(asked: Awaitable[object]) -> str:
    with pytest.raises(Unavailable) as raised:
        await asked
    return str(raised.value)


@pytest.mark.real
@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_no_question_to_a_broker_that_is_away_is_answered_with_names_of_its_api(server: Server, how: str) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = topics.inbox("writer")
        await mail.ensure_subscription(inbox)
        cells = await world.cells(PAUSES_BUCKET)
        await asyncio.to_thread(server.kill if how == "kill" else server.freeze)
        try:
            said = await asyncio.gather(
                sentence(mail.publish(inbox.topic, b"x", message_id="m1")),
                sentence(mail.waiting(inbox)),
                sentence(mail.find(inbox, "m1")),
                sentence(mail.oldest_at(inbox)),
                sentence(mail.list_subscriptions(topics.ALL_MAILBOXES)),
                sentence(mail.ensure_subscription(topics.inbox("other"))),
                sentence(mail.dead_letters.page(">")),
                sentence(mail.dead_letters.latest(inbox, "m1")),
                sentence(cells.read("seats")),
                sentence(cells.list()),
                sentence(cells.mark()),
            )
            written = await cells.create("seats", b"x")
        finally:
            if how == "freeze":
                server.thaw()
        assert isinstance(written, Unknown)
        for text in (*said, written.reason):
            assert "broker" in text and not API_NAMES.search(text), text


def test_each_way_in_which_a_broker_does_not_answer_has_a_sentence_of_its_own() -> None:
    subject = "$JS.API.STREAM.MSG.GET.KV_crewlet_pauses"
    said = [
        str(unanswered(error, subject, 1.5))
        for error in (errors.NoRespondersError(), errors.ConnectionReconnectingError(), TimeoutError())
    ]
    said.append(str(Fault(503, NO_LEADER, "JetStream system temporarily unavailable").as_error()))
    with pytest.raises(Unavailable) as raised:
        parse(b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}')
    assert str(raised.value) == said[-1]
    assert len(set(said)) == 4
    for text in said:
        assert "broker" in text and not API_NAMES.search(text), text
    assert isinstance(unanswered(errors.NoRespondersError(), subject, 1.5), NotTaken)
