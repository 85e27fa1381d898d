"""Mail on a real nats-server that is killed, restarted and flapped on, and on answers that get lost."""

import asyncio
import json
import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, flap, nats_world
from nats.errors import OutboundBufferLimitError

from crewlet.adapters.nats import attachment as attachment_module
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.streams import NS
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Ack, BatchOptions, Defer, Delivery, DetachUnproven, Mail, Outcome, Subscription
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, key, send, until, until_backlog, until_kept

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


@pytest.mark.parametrize("options", [None, BatchOptions(max_messages=10, partition_key=key)], ids=["one", "ten"])
async def test_three_hundred_flaps_under_load_lose_and_double_nothing(
    server: Server, options: BatchOptions | None
) -> None:
    # With this window any mail left in nobody's hand would stay dark for longer than the test waits. A hand-over costs
    # a delivery, and here one message may be handed over more often than in any fleet.
    async with nats_world(server.urls, ack_window_s=300.0, delivery_budget=1000) as world:
        inbox = Subscription(world.topic("inbox"), "g")
        handled = await flap(world, inbox, flaps=300, events=600, seed=7, options=options)
        assert set(handled.values()) == {1}
        await until_kept(world, inbox.topic, 0)
        assert await world.dead_letters(inbox.topic) == []


async def test_a_broker_killed_between_fetch_and_ack_costs_nothing(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")

        async def slow(_: Sequence[Delivery]) -> Outcome:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            return Ack()

        desk = Desk([slow])
        await mail.attach(inbox, desk, good_until=math.inf)
        await send(mail, inbox.topic, "e1", "e2")
        await until(world, lambda: desk.ids == ["e1", "e2"])
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        await until_kept(world, inbox.topic, 0)


async def test_a_message_whose_ack_was_lost_is_not_run_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment_module, "SETTLE_BUDGET_S", 0.0)
    async with nats_world(server.urls, ack_window_s=1.5) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk()
        await mail.attach(inbox, desk, good_until=math.inf)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.open_pulls == 1)
        connection = world.connections[0]
        post = connection.post
        lost: list[str] = []

        def lose_acks(subject: str, *args: Any, **kwargs: Any) -> asyncio.Future[bytes]:
            if subject.startswith("$JS.ACK.") and not lost:
                lost.append(subject)
                answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                answer.set_exception(TimeoutError())
                return answer
            return post(subject, *args, **kwargs)

        monkeypatch.setattr(connection, "post", lose_acks)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: lost != [])
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        assert desk.ids == ["e1"]


async def test_a_restart_of_the_broker_leaves_no_attachment_deaf(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail, sender = await world.client(), await world.client()
        inboxes = [Subscription(world.topic(f"s{number}.inbox"), "g") for number in range(40)]
        desks = [Desk() for _ in inboxes]
        for inbox, desk in zip(inboxes, desks, strict=True):
            await mail.attach(inbox, desk, good_until=math.inf)
        for how in (server.kill, server.terminate):
            await asyncio.to_thread(how)
            await asyncio.to_thread(server.restart)
            for number, inbox in enumerate(inboxes):
                await send(sender, inbox.topic, f"{how.__name__}-{number}")
            await until(world, lambda how=how: all(desk.ids[-1:] and how.__name__ in desk.ids[-1] for desk in desks))
        assert all(len(desk.ids) == 2 for desk in desks)


async def test_a_detach_without_a_broker_is_unproven_and_succeeds_later(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.open_pulls == 1)
        await asyncio.to_thread(server.kill)
        with pytest.raises(DetachUnproven):
            await attachment.detach()
        await asyncio.to_thread(server.restart)
        await until(world, lambda: world.connections[0].is_connected)
        assert await attachment.detach() is True
        await send(mail, inbox.topic, "e1")
        later = Desk()
        await mail.attach(inbox, later, good_until=math.inf)
        await until(world, lambda: later.ids == ["e1"])
        assert desk.ids == []


async def test_a_pull_that_was_lost_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nats_world(server.urls) as world:
        mail, sender = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        client = world.connections[0].client
        tell = client.send
        swallowed: list[str] = []

        def swallow_one(subject: str, *args: Any, **kwargs: Any) -> None:
            if ".MSG.NEXT." in subject and not swallowed:
                swallowed.append(subject)
                return
            tell(subject, *args, **kwargs)

        monkeypatch.setattr(client, "send", swallow_one)
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await send(sender, inbox.topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])
        assert swallowed
        await until(world, lambda: attachment.in_hand == 0)
        assert await attachment.detach() is True
        backlog = await sender.waiting(inbox)
        assert backlog is not None and backlog.open_pulls == 0


async def test_a_full_send_buffer_stops_no_attachment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        client = world.connections[0].client
        tell = client.send
        refusals = iter(range(5))

        def refuse_five(subject: str, *args: Any, **kwargs: Any) -> None:
            if ".MSG.NEXT." in subject and next(refusals, None) is not None:
                raise OutboundBufferLimitError
            tell(subject, *args, **kwargs)

        monkeypatch.setattr(client, "send", refuse_five)
        desk = Desk()
        await mail.attach(inbox, desk, good_until=math.inf)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])


async def test_a_publish_whose_answer_was_lost_is_kept_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        connection = world.connections[0]
        request = connection.request
        lost: list[str] = []

        async def lose_answers(subject: str, *args: Any, **kwargs: Any) -> Any:
            answer = await request(subject, *args, **kwargs)
            if subject == inbox.topic and len(lost) < 2:
                lost.append(subject)
                raise Unavailable("lost on purpose")
            return answer

        monkeypatch.setattr(connection, "request", lose_answers)
        published = await mail.publish(inbox.topic, b"x", message_id="e1")
        assert len(lost) == 2
        assert (published.sequence > 0, published.is_duplicate) == (True, False)
        assert await world.kept(inbox.topic) == 1


@pytest.mark.parametrize("code", [10158, 10164])
async def test_a_publish_that_the_broker_has_not_decided_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        connection = world.connections[0]
        request = connection.request
        undecided: list[str] = []

        async def hesitate(subject: str, *args: Any, **kwargs: Any) -> Any:
            answer = await request(subject, *args, **kwargs)
            if subject == inbox.topic and not undecided:
                undecided.append(subject)
                error = {"code": 409, "err_code": code, "description": "not decided"}
                answer.data = json.dumps({"error": error, "stream": "x", "seq": 0}).encode()
            return answer

        monkeypatch.setattr(connection, "request", hesitate)
        await mail.publish(inbox.topic, b"x", message_id="e1")
        assert undecided
        assert await world.kept(inbox.topic) == 1


async def test_twelve_hundred_durables_are_listed_whole_and_serve(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        mailboxes = [topics.mailbox(f"seat-{number}") for number in range(400)]
        for start in range(0, 400, 50):
            wanted = [one for mailbox in mailboxes[start : start + 50] for one in mailbox]
            assert all(await asyncio.gather(*(mail.ensure_subscription(one) for one in wanted)))
        assert await mail.list_subscriptions(topics.ALL_INBOXES) == sorted(mailbox[0] for mailbox in mailboxes)
        listed = await mail.list_subscriptions(topics.ALL_MAILBOXES)
        assert listed == sorted(one for mailbox in mailboxes for one in mailbox)
        await _a_listing_that_fails_half_way(world, mail, monkeypatch)
        desk = Desk()
        await mail.attach(mailboxes[-1][0], desk, good_until=math.inf)
        await send(mail, mailboxes[-1][0].topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])


async def _a_listing_that_fails_half_way(world: NatsWorld, mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of it passes for the whole; and mailboxes are made without it."""
    connection = world.connections[0]
    request = connection.request
    failed: list[str] = []

    async def fail_half_way(subject: str, payload: bytes = b"", **more: Any) -> Any:
        answer = await request(subject, payload, **more)
        if subject.startswith("$JS.API.CONSUMER.LIST.") and json.loads(payload)["offset"] > 0:
            failed.append(subject)
            answer.data = json.dumps({"error": {"code": 400, "err_code": 10003, "description": "no"}}).encode()
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(connection, "request", fail_half_way)
        with pytest.raises(Unavailable):
            await mail.list_subscriptions(topics.ALL_MAILBOXES)
        handles = ["seat-0", "seat-399", "new-1", "new-2"]
        assert await Mailboxes(mail, world.clock, alarm_after_s=30.0).ensure(handles) == 6
    assert len(failed) == 2


async def test_a_durable_found_with_worse_settings_is_mended_and_a_better_one_left(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=10.0) as world:
        mail = await world.client()
        for window_s, left_s in ((2, 10), (60, 60)):
            inbox = topics.inbox(f"w{window_s}")
            metadata = {"crewlet_topic": inbox.topic, "crewlet_group": inbox.group}
            config = {
                "name": inbox.group,
                "durable_name": inbox.group,
                "filter_subject": inbox.topic,
                "ack_policy": "explicit",
                "ack_wait": window_s * NS,
                "max_deliver": 5,
                "inactive_threshold": 3600 * NS,
                "metadata": metadata,
            }
            body = {"stream_name": "CREWLET_AGENT", "action": "create", "config": config}
            await ask(world.connections[0], f"CONSUMER.CREATE.CREWLET_AGENT.{inbox.group}.{inbox.topic}", body)
            await send(mail, inbox.topic, "e1")
            assert await mail.ensure_subscription(inbox) is False
            await until_backlog(world, mail, inbox, lambda backlog: backlog.waiting == 1)
            info = await ask(world.connections[0], f"CONSUMER.INFO.CREWLET_AGENT.{inbox.group}")
            found = info["config"]
            assert (found["ack_wait"], found["max_deliver"]) == (left_s * NS, -1)
            assert not found.get("inactive_threshold")
            assert found["metadata"]["crewlet_topic"] == inbox.topic


async def test_a_consumer_made_here_has_explicit_settings_and_the_plain_name(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=10.0) as world:
        mail = await world.client()
        await mail.ensure_subscription(topics.inbox("alice"))
        info = await ask(world.connections[0], "CONSUMER.INFO.CREWLET_AGENT.agent-alice")
        found = info["config"]
        assert found["filter_subject"] == "crewlet.agent.alice.inbox"
        assert (found["ack_policy"], found["deliver_policy"]) == ("explicit", "all")
        assert (found["ack_wait"], found["max_deliver"]) == (10 * NS, -1)
        assert not found.get("inactive_threshold")
        stream = await ask(world.connections[0], "STREAM.INFO.CREWLET_AGENT")
        assert stream["config"]["retention"] == "interest"
        assert stream["config"]["max_consumers"] > 100_000


async def test_a_deferred_batch_comes_back_in_stream_order(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        ids = [f"k{number % 3}:{number}" for number in range(12)]
        await send(mail, inbox.topic, *ids)
        desk = Desk()
        options = BatchOptions(max_messages=12, partition_key=key)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, holds=["a"], options=options)
        for lap in range(20):
            desk.answers = [Defer(f"lap {lap}")]
            attachment.unquiesce()
            attachment.unhold("a")
            await until(world, lambda: attachment.is_quiesced and attachment.in_hand == 0)
        attachment.reconfigure(BatchOptions())
        desk.calls.clear()
        attachment.unquiesce()
        await until(world, lambda: len(desk.ids) == 12)
        assert desk.ids == ids
