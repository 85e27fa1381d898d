"""What the mail twin can do that the contract does not ask of a broker: frozen clients, faults, its own clock."""

import asyncio
import math
from collections.abc import Sequence

import pytest

from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Ack, Delivery, DetachUnproven, Outcome, Subscription
from crewlet.testing.contracts.mailworld import Desk
from crewlet.testing.twins.mail import TwinBroker, TwinMail
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

INBOX = Subscription("crewlet.agent.alice.inbox", "agent-alice")


async def started(broker: TwinBroker) -> TwinMail:
    mail = TwinMail(broker)
    await mail.start()
    await mail.ensure_subscription(INBOX)
    return mail


@in_virtual_time
async def test_a_message_in_a_dead_clients_hand_stays_away_for_its_window() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=45.0)
    mail = await started(broker)
    await mail.publish(INBOX.topic, b"x", message_id="e1")
    dead = broker.open_pull(INBOX, 1, 1.5)
    assert [message.id for message, _ in dead.got] == ["e1"]
    began = clock.elapsed()
    desk = Desk()
    await mail.attach(INBOX, desk, good_until=math.inf)
    await until(lambda: desk.ids == ["e1"])
    assert 45.0 <= clock.elapsed() - began < 46.0
    assert desk.lefts == [23]


@in_virtual_time
async def test_an_open_pull_of_a_frozen_client_takes_the_next_message() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=45.0)
    mail = await started(broker)
    frozen = broker.open_pull(INBOX, 1, 1.5)
    desk = Desk()
    await mail.attach(INBOX, desk, good_until=math.inf)
    await clock.sleep(0.1)
    await mail.publish(INBOX.topic, b"x", message_id="e1")
    await mail.publish(INBOX.topic, b"x", message_id="e2")
    await until(lambda: desk.ids == ["e2"])
    assert [message.id for message, _ in frozen.got] == ["e1"]


@in_virtual_time
async def test_a_stale_ack_settles_for_everybody_and_a_stale_nak_costs_a_delivery() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=5.0)
    mail = await started(broker)
    await mail.publish(INBOX.topic, b"x", message_id="e1")
    broker.open_pull(INBOX, 1, 1.5)
    await clock.sleep(6.0)
    heir = broker.open_pull(INBOX, 1, 1.5)
    broker.nak(INBOX, 1, 0.0)
    third = broker.open_pull(INBOX, 1, 1.5)
    assert (heir.got[0][1], third.got[0][1]) == (2, 3)
    broker.ack(INBOX, 1)
    assert broker.retained(INBOX.topic) == []


@in_virtual_time
async def test_the_same_id_is_a_new_message_after_two_minutes() -> None:
    clock = VirtualClock()
    mail = await started(TwinBroker(clock, ack_window_s=45.0))
    assert not (await mail.publish(INBOX.topic, b"x", message_id="e1")).is_duplicate
    await clock.sleep(119.0)
    assert (await mail.publish(INBOX.topic, b"x", message_id="e1")).is_duplicate
    await clock.sleep(2.0)
    assert not (await mail.publish(INBOX.topic, b"x", message_id="e1")).is_duplicate


@in_virtual_time
async def test_a_fault_on_the_way_makes_a_detach_unproven_until_it_is_gone() -> None:
    faults: list[str] = ["detach"]

    async def fault(name: str) -> None:
        if name in faults:
            raise Unavailable("lost on purpose")

    broker = TwinBroker(VirtualClock(), ack_window_s=45.0)
    mail = TwinMail(broker, fault=fault)
    await mail.start()
    attachment = await mail.attach(INBOX, Desk(), good_until=math.inf)
    with pytest.raises(DetachUnproven):
        await attachment.detach()
    faults.clear()
    assert await attachment.detach() is True
    backlog = broker.backlog(INBOX)
    assert backlog is not None and backlog.open_pulls == 0


@in_virtual_time
async def test_a_message_whose_ack_was_lost_is_not_run_again_by_its_holder() -> None:
    faults: list[str] = ["ack"]

    async def fault(name: str) -> None:
        if name in faults:
            faults.remove(name)
            raise Unavailable("lost on purpose")

    broker = TwinBroker(VirtualClock(), ack_window_s=45.0)
    mail = TwinMail(broker, fault=fault)
    await mail.start()
    desk = Desk()
    await mail.attach(INBOX, desk, good_until=math.inf)
    await mail.publish(INBOX.topic, b"x", message_id="e1")
    await until(lambda: not broker.retained(INBOX.topic), within_s=120.0)
    assert desk.ids == ["e1"]


@in_virtual_time
async def test_a_slow_clock_of_one_node_does_not_move_the_brokers_window() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=10.0)
    slow = TwinMail(broker, clock=VirtualClock(rate=0.5))
    await slow.start()
    released = asyncio.Event()

    async def stuck(_: Sequence[Delivery]) -> Outcome:
        await released.wait()
        return Ack()

    holder = await slow.attach(INBOX, Desk([stuck]), good_until=math.inf)
    mail = await started(broker)
    began = clock.elapsed()
    await mail.publish(INBOX.topic, b"x", message_id="e1")
    await until(lambda: holder.is_handling)
    heir = Desk()
    await mail.attach(INBOX, heir, good_until=math.inf)
    await until(lambda: heir.ids == ["e1"])
    assert 10.0 <= clock.elapsed() - began < 11.0
    released.set()


@in_virtual_time
async def test_a_day_of_an_idle_attachment_costs_nothing_with_long_pulls() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=45.0, pull_expiry_s=3600.0)
    mail = await started(broker)
    desk = Desk()
    await mail.attach(INBOX, desk, good_until=math.inf)
    await clock.sleep(86_400.0)
    await mail.publish(INBOX.topic, b"x", message_id="e1")
    await until(lambda: desk.ids == ["e1"])
