"""Burials on a real nats-server that lose their answers, their stream or their room."""

import asyncio
import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, nats_world

from crewlet.adapters.nats import attachment as attachment_module
from crewlet.adapters.nats import streams as streams_module
from crewlet.adapters.nats.acks import ACK
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.streams import DEAD_LETTERS, ensure_stream
from crewlet.mail import consuming as consuming_module
from crewlet.mail.deadletters import HEADROOM_BYTES
from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.ports.deadletters import DeadLetter
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Bury, Delivery, Mail, MessageTooLarge, Nak, Subscription
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, send, until, until_backlog

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def letters(mail: Mail, inbox: Subscription) -> list[DeadLetter]:
    return list((await mail.dead_letters.page(inbox.topic)).letters)


def lose_acks(world: NatsWorld, client: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No ack of this client leaves it, as if the process had died before each; what was to be said is listed."""
    connection = world.connections[client]
    post, lost = connection.post, list[str]()

    def only_others(subject: str, payload: bytes, **kwargs: Any) -> asyncio.Future[bytes]:
        if not (subject.startswith("$JS.ACK.") and payload == ACK):
            return post(subject, payload, **kwargs)
        lost.append(subject)
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        never.set_exception(TimeoutError())
        return never

    monkeypatch.setattr(connection, "post", only_others)
    return lost


@pytest.mark.parametrize("window_s", [120, 1], ids=["within_the_dedupe_window", "long_after_it"])
async def test_a_crash_between_burial_and_ack_leaves_one_dead_letter(
    server: Server, monkeypatch: pytest.MonkeyPatch, window_s: int
) -> None:
    monkeypatch.setattr(attachment_module, "SETTLE_BUDGET_S", 0.0)
    monkeypatch.setattr(streams_module, "DEDUPE_WINDOW_S", window_s)
    async with nats_world(server.urls, delivery_budget=1, ack_window_s=2.5) as world:
        dying, heir = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        lost = lose_acks(world, 0, monkeypatch)
        attachment = await dying.attach(inbox, Desk([Nak("poison")]), good_until=math.inf)
        await send(heir, inbox.topic, "e1")
        await until(world, lambda: lost != [])
        attachment.disown()
        await attachment.detach()
        (first,) = await letters(heir, inbox)
        desk = Desk()
        await heir.attach(inbox, desk, good_until=math.inf)
        await until_backlog(world, heir, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert await letters(heir, inbox) == [first]
        assert desk.calls == []
        assert heir.tally.dead_letters == 1


async def bury(deliveries: Sequence[Delivery]) -> Bury:
    return Bury(deliveries[0], "not an event")


@pytest.mark.parametrize(("answers", "budget", "tries"), [([Nak("poison")], 1, 1), ([bury, bury], 25, 2)])
async def test_a_burial_that_fails_keeps_the_mail_and_a_lost_stream_is_made_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, answers: list[Any], budget: int, tries: int
) -> None:
    monkeypatch.setattr(consuming_module, "NAK_CAP_S", 3.0)
    async with nats_world(server.urls, delivery_budget=budget) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk(list(answers))
        await mail.ensure_subscription(inbox)
        await ask(world.connections[0], "STREAM.DELETE.CREWLET_DLQ")
        await mail.attach(inbox, desk, good_until=math.inf)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: mail.tally.failed_burials == 1)
        assert await world.kept(inbox.topic) == 1
        await until(world, lambda: mail.tally.dead_letters == 1)
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        (letter,) = await letters(mail, inbox)
        assert (letter.message_id, letter.data) == ("e1", b"e1")
        assert desk.ids == ["e1"] * tries


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("is_done", [False, True], ids=["it_never_arrived", "its_answer_is_lost"])
async def test_a_delete_that_nobody_answered_is_not_repeated_on_another_letter_at_the_same_place(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_made_anew: bool, is_done: bool
) -> None:
    async with nats_world(server.urls, delivery_budget=1) as world:
        mail, other = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await other.attach(inbox, Desk([Nak("poison")] * 2), good_until=math.inf)
        await send(other, inbox.topic, "e1")
        await until(world, lambda: other.tally.dead_letters == 1)
        (letter,) = await letters(mail, inbox)
        connection, request = world.connections[0], world.connections[0].request
        deletes: list[str] = []

        async def lossy(subject: str, payload: bytes = b"", **kwargs: Any) -> Any:
            if not subject.startswith("$JS.API.STREAM.MSG.DELETE.") or deletes:
                return await request(subject, payload, **kwargs)
            deletes.append(subject)
            if is_done:
                await request(subject, payload, **kwargs)
            if is_made_anew:
                await ask(world.connections[1], "STREAM.DELETE.CREWLET_DLQ")
                await ensure_stream(world.connections[1], DEAD_LETTERS, replicas=1, budget_s=5.0)
                await send(other, inbox.topic, "e2")
                await until(world, lambda: other.tally.dead_letters == 2)
            raise Unavailable("nobody answered")

        monkeypatch.setattr(connection, "request", lossy)
        assert await mail.dead_letters.remove(letter.id) is True
        assert [each.message_id for each in await letters(mail, inbox)] == (["e2"] if is_made_anew else [])
        assert await mail.dead_letters.remove(letter.id) is False


async def test_the_largest_mail_has_room_for_its_history(server: Server) -> None:
    async with nats_world(server.urls, delivery_budget=3) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        journal = Journal(await world.cells(DELIVERIES_BUCKET), "n1:" + "o" * 100, world.clock)
        with pytest.raises(MessageTooLarge):
            await mail.publish(inbox.topic, b"x" * (world.ceiling - HEADROOM_BYTES + 1), message_id="larger")
        await mail.publish(inbox.topic, b"x" * (world.ceiling - HEADROOM_BYTES), message_id="largest")
        # Put there by somebody who keeps no room.
        await world.connections[0].request(inbox.topic, b"y" * (world.ceiling - 200), timeout_s=30.0)
        reason = "warum? \N{PILE OF POO}" * 200
        await mail.attach(inbox, Desk([Nak(reason)] * 6), good_until=math.inf, journal=journal)
        await until(world, lambda: mail.tally.dead_letters + mail.tally.failed_burials >= 2)
        found = {letter.message_id: letter for letter in await letters(mail, inbox)}
        assert [each.number for each in found["largest"].history] == [1, 2, 3]
        assert found["largest"].reason.startswith("warum? \N{PILE OF POO}warum?")
        assert len(found["largest"].data) == world.ceiling - HEADROOM_BYTES
        # What leaves no room at all stays where it is, and is told of: see `dead_letter_failed`.
        assert mail.tally.failed_burials >= 1 and await world.kept(inbox.topic) == 1
