"""The walk over a company's mailboxes, with registry and mail on a real broker; its twin is in the unit tests."""

import pytest
from mail_worlds import NatsWorld, nats_world

from crewlet.adapters.nats.cells import NatsCells
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.mail.registry import MAILBOXES_BUCKET, MailboxRegistry
from crewlet.ports.mail import Subscription
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.mailworld import Desk, LiveMail, send, until
from crewlet.testing.faults import Fault, FaultyCells

pytestmark = pytest.mark.real

TTL_S = 30.0


async def _office(world: NatsWorld) -> tuple[LiveMail, FaultyCells, MailboxRegistry, Mailboxes]:
    mail = await world.client()
    bucket = await NatsCells(world.connections[-1], entropy=world.entropy).open(MAILBOXES_BUCKET)
    cells = FaultyCells(bucket, sleep=world.clock.sleep)
    registry = MailboxRegistry(cells)
    return mail, cells, registry, Mailboxes(mail, world.clock, alarm_after_s=TTL_S, registry=registry)


@pytest.mark.proves("SU-05")
async def test_a_handle_that_left_and_returns_gets_its_mailbox_again_from_the_same_node(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail, _, registry, mailboxes = await _office(world)
        assert await mailboxes.ensure(["boss", "ceo"]) == 6
        assert await mailboxes.ensure(["boss"]) == 0
        record = await registry.get("ceo")
        assert record is not None
        for subscription in topics.mailbox("ceo"):
            assert await mail.delete_subscription(subscription) is True
        await registry.delete(record)
        assert await mailboxes.ensure(["boss", "ceo"]) == 3
        record = await registry.get("ceo")
        assert record is not None and record.is_clean
        desk = Desk()
        await mail.attach(topics.inbox("ceo"), desk, good_until=world.clock.elapsed() + TTL_S)
        await send(mail, topics.inbox("ceo").topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])


@pytest.mark.proves("SU-11")
async def test_each_seat_is_registered_before_its_subscriptions_are_made(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls) as world:
        mail, _, registry, mailboxes = await _office(world)
        ensure, was_registered = mail.ensure_subscription, list[bool]()

        async def look(subscription: Subscription) -> bool:
            was_registered.append(await registry.get("first") is not None)
            return await ensure(subscription)

        monkeypatch.setattr(mail, "ensure_subscription", look)
        assert await mailboxes.ensure(["first"]) == 3
        assert was_registered == [True, True, True]


@pytest.mark.proves("SU-11")
async def test_without_a_registration_or_a_registry_the_mailbox_is_made_all_the_same(server: Server) -> None:
    async with nats_world(server.urls) as world:
        mail, cells, registry, mailboxes = await _office(world)
        cells.next("create", Fault.LOST)
        assert await mailboxes.ensure(["second"]) == 3
        assert await registry.get("second") is None
        cells.cut()
        assert await mailboxes.ensure(["third"]) == 3
        cells.heal()
        assert await Mailboxes(mail, world.clock, alarm_after_s=TTL_S).ensure(["fourth"]) == 3
