"""The checks that every mail port answers to: holds, quiescing and the pause."""

import asyncio
import math

from crewlet.ports.mail import Ack, NoMailbox, Subscription
from crewlet.testing.contracts.mailworld import (
    Desk,
    MakeWorld,
    quiet,
    raises,
    send,
    until,
    until_backlog,
    until_kept,
    when,
)


async def a_pause_keeps_mail_from_handlers(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        desk = Desk([when(released, Ack())])
        await mail.attach(inbox, desk, good_until=math.inf)
        assert await mail.wait_for_handlers(0.0) == 0
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])
        mail.pause()
        assert await mail.wait_for_handlers(0.01) == 1
        released.set()
        assert await mail.wait_for_handlers(None) == 0
        await send(mail, inbox.topic, "e2")
        await quiet(world)
        assert desk.ids == ["e1"]
        assert await world.kept(inbox.topic) >= 1
        assert await mail.wait_for_handlers(0.0) == 0
        mail.resume()
        await until(world, lambda: desk.ids == ["e1", "e2"])
        assert await mail.wait_for_handlers(None) == 0


async def a_quiesced_attachment_holds_its_mail(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        assert attachment.quiesce() is True
        assert attachment.quiesce() is False
        await send(mail, inbox.topic, "e1")
        await quiet(world)
        assert desk.ids == []
        assert attachment.unquiesce() is True
        assert attachment.unquiesce() is False
        await until(world, lambda: desk.ids == ["e1"])
        await attachment.detach()
        assert attachment.quiesce() is False
        later = Desk()
        again = await mail.attach(inbox, later, good_until=math.inf)
        assert not again.is_quiesced
        await send(mail, inbox.topic, "e2")
        await until(world, lambda: later.ids == ["e2"])


async def every_hold_must_go(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        attachment.hold("a")
        attachment.hold("a")
        attachment.hold("b")
        await send(mail, inbox.topic, "e1")
        attachment.unhold("a")
        await quiet(world)
        assert desk.ids == [] and list(attachment.holds) == ["b"]
        attachment.unhold("b")
        await until(world, lambda: desk.ids == ["e1"])
        attachment.unhold("b")
        assert list(attachment.holds) == []


async def a_hold_taken_before_the_attach_stops_the_first_delivery(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        await send(one, inbox.topic, "w1", "w2")
        desk = Desk()
        attachment = await two.attach(inbox, desk, good_until=math.inf, holds=["paused"])
        await quiet(world)
        await until_backlog(world, one, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (2, 0))
        assert desk.ids == []
        attachment.unhold("paused")
        await until(world, lambda: desk.ids == ["w1", "w2"])


async def a_hold_does_not_bring_back_a_deleted_subscription(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        attachment = await one.attach(inbox, Desk(), good_until=math.inf)
        assert await two.delete_subscription(inbox) is True
        attachment.hold("a")
        attachment.unhold("a")
        attachment.quiesce()
        attachment.unquiesce()
        await quiet(world)
        assert await two.waiting(inbox) is None
        await raises(two.publish(inbox.topic, b"x", message_id="e1"), NoMailbox)
        await until_kept(world, inbox.topic, 0)
        assert await attachment.detach() is True


async def unquiesce_leaves_a_hold_in_force(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf, holds=["a"])
        attachment.quiesce()
        await send(mail, inbox.topic, "e1")
        assert attachment.unquiesce() is True
        await quiet(world)
        assert desk.ids == [] and list(attachment.holds) == ["a"]


async def a_hold_gates_its_own_attachment_only(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        other_group = Subscription(inbox.topic, "h")
        held, peer, other = Desk(), Desk(), Desk()
        gated = await one.attach(inbox, held, good_until=math.inf, holds=["a"])
        await two.attach(inbox, peer, good_until=math.inf)
        beside = await one.attach(other_group, other, good_until=math.inf)
        await send(one, inbox.topic, "e1", "e2")
        await until(world, lambda: peer.ids == ["e1", "e2"] and other.ids == ["e1", "e2"])
        assert held.ids == []
        beside.hold("a")
        gated.unhold("a")
        assert (list(gated.holds), list(beside.holds)) == ([], ["a"])


async def a_hold_goes_with_the_seat_to_its_next_node(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        here, there = Desk(), Desk()
        old = await one.attach(inbox, here, good_until=math.inf, holds=["paused"])
        await send(one, inbox.topic, "w1")
        await old.detach()
        new = await two.attach(inbox, there, good_until=math.inf, holds=["paused"])
        await send(one, inbox.topic, "w2")
        await quiet(world)
        await until_backlog(world, two, inbox, lambda backlog: (backlog.waiting, backlog.open_pulls) == (2, 0))
        old.unhold("paused")
        await quiet(world)
        assert (here.ids, there.ids) == ([], [])
        new.unhold("paused")
        await until(world, lambda: there.ids == ["w1", "w2"])
        assert here.ids == []
