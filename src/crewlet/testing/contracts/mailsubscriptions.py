"""The checks that every mail port answers to: subscriptions, their names, and what is published to them."""

import math

from crewlet.mail import topics
from crewlet.ports.errors import Fenced, Misuse
from crewlet.ports.mail import Defer, MessageTooLarge, NoMailbox, Subscription
from crewlet.testing.contracts.mailworld import Desk, MakeWorld, raises, send, until, until_backlog, until_kept


async def names_that_look_alike_never_share(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        pairs = [
            Subscription(world.topic("a.b"), "h.i"),
            Subscription(world.topic("a_b"), "h.i"),
            Subscription(world.topic("a.b"), "h_i"),
            Subscription(world.topic("a_b"), "h_i"),
            Subscription(world.topic("a-b"), "h i/ü*>"),
        ]
        for pair in pairs:
            assert await mail.ensure_subscription(pair) is True
        await send(mail, world.topic("a.b"), "e1")
        for pair in (pairs[0], pairs[2]):
            # A server counts what it has stored a moment later.
            await until_backlog(world, mail, pair, lambda backlog: backlog.waiting == 1)
        counts = [backlog.waiting for pair in pairs if (backlog := await mail.waiting(pair)) is not None]
        assert counts == [1, 0, 1, 0, 0]
        for bad in ("", "crewlet", "crewlet.agent..inbox", "crewlet.agent.*.inbox", "crewlet.agent.>", "a b.c", "x.y"):
            await raises(mail.ensure_subscription(Subscription(bad, "g")), Misuse)
        await raises(mail.ensure_subscription(Subscription(world.topic("a"), "")), Misuse)


async def a_message_over_the_ceiling_is_refused(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        try:
            await mail.publish(inbox.topic, b"x" * (world.ceiling + 1), message_id="big")
        except MessageTooLarge:
            pass
        else:
            raise AssertionError("it was taken")
        await until_kept(world, inbox.topic, 0)
        published = await mail.publish(inbox.topic, b"x", message_id="big")
        assert not published.is_duplicate


async def a_seats_mail_is_kept_by_its_own_mailbox_alone(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = topics.inbox(f"seat-{world.topic('x').split('.')[2]}")
        await mail.ensure_subscription(Subscription(inbox.topic, "somebody-who-listens"))
        await raises(mail.publish(inbox.topic, b"x", message_id="e1"), NoMailbox)
        await until_kept(world, inbox.topic, 0)
        await mail.ensure_subscription(inbox)
        published = await mail.publish(inbox.topic, b"x", message_id="e1")
        assert not published.is_duplicate
        desk = Desk()
        await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: desk.ids == ["e1"])


async def a_publish_that_is_not_admitted_sends_nothing(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)

        def refuse() -> None:
            raise Fenced("not any more")

        await raises(mail.publish(inbox.topic, b"x", message_id="e1", admit=refuse), Fenced)
        await until_kept(world, inbox.topic, 0)
        published = await mail.publish(inbox.topic, b"x", message_id="e1", admit=lambda: None)
        assert not published.is_duplicate


async def an_ensured_subscription_keeps_its_mail(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        assert await one.ensure_subscription(inbox) is True
        await send(one, inbox.topic, "e1", "e2")
        assert await two.ensure_subscription(inbox) is False
        await until_backlog(world, two, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (2, 0))
        desk = Desk()
        await two.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: desk.ids == ["e1", "e2"])


async def a_subscription_begins_at_the_earliest_message_that_is_kept(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox, later = Subscription(world.topic("inbox"), "g"), Subscription(world.topic("inbox"), "later")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1", "e2")
        assert await mail.ensure_subscription(later) is True
        await until_backlog(world, mail, later, lambda backlog: (backlog.waiting, backlog.open_pulls) == (2, 0))
        desk = Desk()
        await mail.attach(later, desk, good_until=math.inf)
        await send(mail, inbox.topic, "e3")
        await until(world, lambda: desk.ids == ["e1", "e2", "e3"])


async def mail_to_nobody_is_refused_and_does_not_burn_its_id(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await raises(mail.publish(inbox.topic, b"x", message_id="e1"), NoMailbox)
        await mail.ensure_subscription(inbox)
        backlog = await mail.waiting(inbox)
        assert backlog is not None and backlog.waiting == 0
        published = await mail.publish(inbox.topic, b"x", message_id="e1")
        assert not published.is_duplicate
        assert await world.kept(inbox.topic) == 1
        notices = Subscription(f"crewlet.notifications.{inbox.topic.split('.')[2]}", "g")
        await raises(mail.publish(notices.topic, b"x", message_id="e1"), NoMailbox)
        assert await world.kept(notices.topic) == 0
        await mail.ensure_subscription(notices)
        published = await mail.publish(notices.topic, b"x", message_id="e1")
        assert not published.is_duplicate
        assert await world.kept(notices.topic) == 1
        await mail.delete_subscription(notices)


async def the_same_id_is_kept_once_a_topic(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        alice, bob = Subscription(world.topic("alice"), "g"), Subscription(world.topic("bob"), "g")
        for inbox in (alice, bob):
            await one.ensure_subscription(inbox)
        first = await one.publish(alice.topic, b"x", message_id="e1")
        again = await two.publish(alice.topic, b"x", message_id="e1")
        elsewhere = await two.publish(bob.topic, b"x", message_id="e1")
        assert (first.is_duplicate, again.is_duplicate, elsewhere.is_duplicate) == (False, True, False)
        assert again.sequence == first.sequence
        assert (await world.kept(alice.topic), await world.kept(bob.topic)) == (1, 1)


async def detach_keeps_the_mail_and_answers_twice_differently(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox, other = Subscription(world.topic("inbox"), "g"), Subscription(world.topic("inbox"), "h")
        desk, copied, again = Desk(), Desk(), Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await mail.attach(other, copied, good_until=math.inf)
        assert await attachment.detach() is True
        assert await attachment.detach() is False
        await send(mail, inbox.topic, "e1", "e2", "e3")
        await until(world, lambda: copied.ids == ["e1", "e2", "e3"])
        assert desk.ids == []
        await mail.attach(inbox, again, good_until=math.inf)
        await until(world, lambda: again.ids == ["e1", "e2", "e3"])


async def a_delete_takes_the_mail_and_spares_the_sibling(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox, sibling = Subscription(world.topic("inbox"), "g"), Subscription(world.topic("inbox"), "h")
        await one.ensure_subscription(inbox)
        await one.ensure_subscription(sibling)
        await send(one, inbox.topic, "e1")
        assert await two.delete_subscription(inbox) is True
        assert await two.delete_subscription(inbox) is False
        await until_backlog(world, two, sibling, lambda backlog: backlog.waiting == 1)
        await two.delete_subscription(sibling)
        await until_kept(world, inbox.topic, 0)
        await raises(one.publish(inbox.topic, b"x", message_id="e2"), NoMailbox)
        assert await one.ensure_subscription(inbox) is True
        fresh = await one.waiting(inbox)
        assert fresh is not None and fresh.waiting == 0


async def a_listing_names_every_pair_exactly(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        pairs = [
            Subscription(world.topic("a.inbox"), "agent-a"),
            Subscription(world.topic("a.inbox"), "odd group/ü"),
            Subscription(world.topic("b.c.inbox"), "agent-b"),
            Subscription(world.topic("gone.inbox"), "agent-gone"),
        ]
        for pair in pairs:
            await one.ensure_subscription(pair)
        await one.attach(pairs[0], Desk(), good_until=math.inf)
        await two.delete_subscription(pairs[3])
        assert await two.list_subscriptions(world.topic(">")) == sorted(pairs[:3])
        assert await two.list_subscriptions(world.topic("*.inbox")) == sorted(pairs[:2])
        assert await two.list_subscriptions(world.topic("a.inbox.>")) == []
        assert await two.list_subscriptions(world.topic("a.>")) == sorted(pairs[:2])
        for bad in ("", "a..b", ">.a", "a b"):
            await raises(two.list_subscriptions(bad), Misuse)


async def members_of_a_group_share_and_groups_each_get_a_copy(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        shared = Subscription(world.topic("inbox"), "g")
        copied = Subscription(shared.topic, "h")
        first, second, whole = Desk(), Desk(), Desk()
        await one.attach(shared, first, good_until=math.inf)
        await two.attach(shared, second, good_until=math.inf)
        await one.attach(copied, whole, good_until=math.inf)
        ids = [f"e{number}" for number in range(20)]
        await send(one, shared.topic, *ids)
        await until(world, lambda: len(first.ids) + len(second.ids) == 20 and len(whole.ids) == 20)
        assert sorted([*first.ids, *second.ids]) == sorted(ids)
        assert whole.ids == ids
        await until_backlog(world, one, shared, lambda backlog: backlog.in_hand == 0)
        await until_backlog(world, one, copied, lambda backlog: backlog.in_hand == 0)
        await until_kept(world, shared.topic, 0)


async def a_hand_back_may_go_to_the_other_member(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        first, second = Desk([Defer("not mine")]), Desk()
        await one.attach(inbox, first, good_until=math.inf)
        await send(one, inbox.topic, "e1")
        await until(world, lambda: first.ids == ["e1"])
        await two.attach(inbox, second, good_until=math.inf)
        await until(world, lambda: second.ids == ["e1"])
