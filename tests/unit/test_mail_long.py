"""How long mail stays where it is: a turn of hours keeps its delivery, and a dead node's is back in one window."""

import asyncio
import math
from collections.abc import Sequence

from crewlet.mail import topics
from crewlet.ports.mail import Ack, Delivery, Outcome
from crewlet.testing.contracts.mailworld import Desk
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time

TTL_S = 45.0
TEN_HOURS_S = 36_000.0


@in_virtual_time
async def test_a_turn_of_ten_hours_keeps_its_delivery() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=TTL_S, pull_expiry_s=600.0)
    holder, other = TwinMail(broker), TwinMail(broker)
    inbox = topics.inbox("a")
    for mail in (holder, other):
        await mail.start()

    async def work(_: Sequence[Delivery]) -> Outcome:
        await clock.sleep(TEN_HOURS_S)
        return Ack()

    desk, rival = Desk([work]), Desk()
    attachment = await holder.attach(inbox, desk, good_until=clock.elapsed() + TTL_S)
    await holder.publish(inbox.topic, b"x", message_id="long")
    while not attachment.is_handling:
        await clock.sleep(0.01)
    await other.attach(inbox, rival, good_until=math.inf)
    while attachment.is_handling:
        attachment.prolong(clock.elapsed() + TTL_S)
        await clock.sleep(TTL_S / 3)
    await clock.sleep(2 * TTL_S)
    assert (desk.ids, rival.ids) == (["long"], [])
    assert broker.retained(inbox.topic) == []


@in_virtual_time
async def test_a_dead_nodes_mail_is_back_within_one_window() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=TTL_S)
    dead, heir = TwinMail(broker), TwinMail(broker)
    inbox = topics.inbox("a")

    async def never(_: Sequence[Delivery]) -> Outcome:
        await asyncio.Event().wait()
        return Ack()

    for mail in (dead, heir):
        await mail.start()
    await dead.ensure_subscription(inbox)
    await dead.publish(inbox.topic, b"x", message_id="e1")
    attachment = await dead.attach(inbox, never, good_until=clock.elapsed() + TTL_S)
    while not attachment.is_handling:
        await clock.sleep(0.01)
    await clock.sleep(TTL_S / 3)
    attachment.prolong(clock.elapsed() + TTL_S)
    await clock.sleep(0.1)
    # From here on it is dead: nothing is renewed, handed back or said.
    died_at, desk = clock.elapsed(), Desk()
    await heir.attach(inbox, desk, good_until=math.inf)
    while not desk.ids:
        await clock.sleep(0.01)
    assert clock.elapsed() - died_at <= TTL_S
    assert desk.lefts == [23]
