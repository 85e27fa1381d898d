"""The checks that every mail port answers to: an attachment, from its lease and windows to its detach."""

import asyncio
import math

from crewlet.ports.errors import NotLive
from crewlet.ports.mail import Ack, BatchOptions, Defer, Nak, Subscription
from crewlet.testing.contracts.mailworld import (
    LONG_S,
    Desk,
    MakeWorld,
    quiet,
    raises,
    raises_now,
    send,
    until,
    until_backlog,
    until_kept,
    when,
)


async def a_detach_does_not_wait_and_a_late_deferral_harms_nobody(make: MakeWorld) -> None:
    # The window is longer than any wait: what the late deferral gives back has not come back by itself.
    async with make(ack_window_s=LONG_S) as world:
        one, two = await world.client(), await world.client()
        for name, heir in (("moved", two), ("back", one)):
            inbox = Subscription(world.topic(name), "g")
            await one.ensure_subscription(inbox)
            released = asyncio.Event()

            old = Desk([when(released, Defer("late"))])
            before = await one.attach(inbox, old, good_until=math.inf)
            await send(one, inbox.topic, "e1")
            await until(world, lambda before=before: before.is_handling)
            assert await before.detach() is True
            assert before.is_handling
            new = Desk()
            after = await heir.attach(inbox, new, good_until=math.inf)
            await send(one, inbox.topic, "e2")
            await until(world, lambda new=new: new.ids == ["e2"])
            released.set()
            await until(world, lambda new=new: new.ids == ["e2", "e1"])
            await send(one, inbox.topic, "e3")
            await until(world, lambda new=new: new.ids == ["e2", "e1", "e3"])
            assert not after.is_quiesced
            assert old.ids == ["e1"]
            assert await before.detach() is False


async def nothing_of_a_late_ack_reaches_the_broker(make: MakeWorld) -> None:
    async with make(ack_window_s=2.0) as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        released = asyncio.Event()

        before = await one.attach(inbox, Desk([when(released, Ack())]), good_until=math.inf)
        await send(one, inbox.topic, "e1")
        await until(world, lambda: before.is_handling)
        await before.detach()
        released.set()
        await until(world, lambda: not before.is_handling)
        new = Desk()
        await two.attach(inbox, new, good_until=math.inf)
        await until(world, lambda: new.ids == ["e1"])


async def a_disowned_handler_hands_nothing_back(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        released = asyncio.Event()

        before = await mail.attach(inbox, Desk([when(released, Nak("late"))]), good_until=math.inf)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: before.is_handling)
        before.disown()
        await before.detach()
        released.set()
        await until(world, lambda: not before.is_handling)
        new = Desk()
        await mail.attach(inbox, new, good_until=math.inf)
        await quiet(world, 1.0)
        assert new.ids == []
        backlog = await mail.waiting(inbox)
        assert backlog is not None and backlog.in_hand == 1


async def every_verb_of_a_stopped_instance_says_not_live(make: MakeWorld) -> None:
    async with make() as world:
        mail, other = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        unmade = Subscription(world.topic("unmade"), "g")
        attachment = await mail.attach(inbox, Desk(), good_until=math.inf)
        await mail.stop()
        idle = await world.client(is_started=False)
        for dead in (mail, idle):
            for verb in (
                lambda dead=dead: dead.publish(inbox.topic, b"", message_id="e1"),
                lambda dead=dead: dead.ensure_subscription(unmade),
                lambda dead=dead: dead.delete_subscription(inbox),
                lambda dead=dead: dead.list_subscriptions(inbox.topic),
                lambda dead=dead: dead.waiting(inbox),
                lambda dead=dead: dead.find(inbox, "e1"),
                lambda dead=dead: dead.oldest_at(inbox),
                lambda dead=dead: dead.dead_letters.page(inbox.topic),
                lambda dead=dead: dead.dead_letters.get("1-00000000"),
                lambda dead=dead: dead.dead_letters.latest(inbox, "e1"),
                lambda dead=dead: dead.dead_letters.remove("1-00000000"),
                lambda dead=dead: dead.attach(unmade, Desk(), good_until=math.inf),
                lambda dead=dead: dead.wait_for_handlers(0.0),
            ):
                await raises(verb(), NotLive)
            for now in (dead.pause, dead.resume):
                raises_now(now, NotLive)
        await raises(attachment.detach(), NotLive)
        for now in (
            attachment.quiesce,
            attachment.unquiesce,
            lambda: attachment.hold("a"),
            lambda: attachment.unhold("a"),
            lambda: attachment.reconfigure(BatchOptions()),
        ):
            raises_now(now, NotLive)
        raises_now(lambda: attachment.prolong(math.inf), NotLive)
        assert await other.waiting(unmade) is None
        await until_kept(world, inbox.topic, 0)
        backlog = await other.waiting(inbox)
        assert backlog is not None and backlog.open_pulls == 0


async def starting_and_stopping_twice_is_harmless(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        await mail.start()
        await mail.stop()
        await mail.stop()


async def an_unprolonged_delivery_goes_to_the_next_reader(make: MakeWorld) -> None:
    async with make(ack_window_s=1.5) as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        dead, heir = Desk([when(released, Ack())]), Desk()
        holder = await one.attach(inbox, dead, good_until=math.inf)
        await send(one, inbox.topic, "e1")
        await until(world, lambda: holder.is_handling)
        await two.attach(inbox, heir, good_until=math.inf)
        await until(world, lambda: heir.ids == ["e1"])
        assert heir.lefts == [23]
        released.set()


async def a_prolonged_delivery_stays_in_hand(make: MakeWorld) -> None:
    async with make(ack_window_s=1.5) as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        desk, rival = Desk([when(released, Ack())]), Desk()
        holder = await one.attach(inbox, desk, good_until=math.inf)
        await send(one, inbox.topic, "e1")
        await until(world, lambda: holder.is_handling)
        await two.attach(inbox, rival, good_until=math.inf)
        for _ in range(8):
            holder.prolong(math.inf)
            await world.clock.sleep(0.5)
        released.set()
        await until_backlog(world, one, inbox, lambda backlog: backlog.in_hand == 0)
        assert (desk.ids, rival.ids) == (["e1"], [])


async def an_attachment_stops_fetching_when_its_lease_is_over(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=world.clock.elapsed() + 2.0)
        await world.clock.sleep(2.1)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.open_pulls == 0)
        await send(mail, inbox.topic, "e1")
        await quiet(world)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.waiting == 1)
        assert desk.ids == []
        attachment.prolong(world.clock.elapsed() + 60.0)
        await until(world, lambda: desk.ids == ["e1"])


async def after_a_detach_no_pull_is_open(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        for number in range(20):
            desk = Desk()
            attachment = await mail.attach(inbox, desk, good_until=math.inf)
            await world.clock.sleep(0.001 * (number % 4))
            await attachment.detach()
            backlog = await mail.waiting(inbox)
            assert backlog is not None and backlog.open_pulls == 0 and desk.ids == []
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        await until_kept(world, inbox.topic, 0)
