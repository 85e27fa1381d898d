"""The checks that every mail port answers to: outcomes, subscriptions, holds. Batches are in `mailbatches`.

Each check is a coroutine function over a `MakeWorld`; it raises AssertionError. No check measures time.
"""

import asyncio
import math
from collections.abc import Sequence

from crewlet.ports.errors import Fenced, Misuse, NotLive
from crewlet.ports.mail import (
    Ack,
    Defer,
    Delivery,
    MessageTooLarge,
    Nak,
    NoMailbox,
    Outcome,
    Subscription,
)
from crewlet.testing.contracts.mailworld import LONG_S, Desk, MakeWorld, quiet, send, until, until_backlog


async def a_deferral_returns_at_the_head_and_quiesces(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1", "e2")
        desk = Desk([Defer("not here")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: attachment.is_quiesced)
        await quiet(world)
        assert desk.ids == ["e1"]
        assert attachment.in_hand == 0
        assert await world.kept(inbox.topic) == 2
        assert attachment.unquiesce() is True
        await until(world, lambda: len(desk.ids) == 3)
        assert desk.ids == ["e1", "e1", "e2"]


async def every_hand_back_costs_one_delivery(make: MakeWorld) -> None:
    async with make(delivery_budget=3) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1")
        desk = Desk([Defer("a"), Nak("b"), Nak("c")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: attachment.is_quiesced)
        attachment.unquiesce()
        await until(world, lambda: len(desk.lefts) == 3)
        assert desk.lefts == [2, 1, 0]
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        letters = await world.dead_letters(inbox.topic)
        assert [(letter.id, letter.data) for letter in letters] == [("e1", b"e1")]
        assert letters[0].headers["Crewlet-Topic"] == inbox.topic
        assert letters[0].headers["Crewlet-Group"] == "g"
        assert letters[0].headers["Crewlet-Deliveries"] == "3"
        assert letters[0].headers["Crewlet-Reason"] == "c"
        await quiet(world)
        assert len(desk.calls) == 3


async def a_delivery_past_its_budget_is_buried_unrun(make: MakeWorld) -> None:
    async with make(delivery_budget=1) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1", "e2")
        desk = Desk([Defer("the only delivery goes back")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: attachment.is_quiesced)
        attachment.unquiesce()
        await until(world, lambda: desk.ids == ["e1", "e2"])
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        assert [letter.id for letter in await world.dead_letters(inbox.topic)] == ["e1"]


async def a_handler_may_publish_to_its_own_inbox(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)

        async def publish_more(_: Sequence[Delivery]) -> Outcome:
            await send(mail, inbox.topic, "second")
            assert desk.calls == [["first"]]
            return Ack()

        desk = Desk([publish_more])
        await mail.attach(inbox, desk, good_until=math.inf)
        await send(mail, inbox.topic, "first")
        await until(world, lambda: desk.ids == ["first", "second"])
        assert desk.most_at_once == 1


async def a_cancelled_publisher_does_not_reach_the_handler(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk([Nak("once")])
        await mail.attach(inbox, desk, good_until=math.inf)

        async def publish_and_stay() -> None:
            await send(mail, inbox.topic, "e1")
            await world.clock.sleep(LONG_S)

        publisher = asyncio.create_task(publish_and_stay())
        await until(world, lambda: len(desk.calls) == 1)
        publisher.cancel()
        await asyncio.gather(publisher, return_exceptions=True)

        async def take_a_while(_: Sequence[Delivery]) -> Outcome:
            await world.clock.sleep(0.05)
            finished.append(True)
            return Ack()

        finished: list[bool] = []
        desk.answers = [take_a_while]
        await until(world, lambda: finished == [True])
        assert desk.ids == ["e1", "e1"]


async def a_detach_does_not_wait_and_a_late_deferral_harms_nobody(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        released = asyncio.Event()

        async def late(_: Sequence[Delivery]) -> Outcome:
            await released.wait()
            return Defer("late")

        old = Desk([late])
        before = await one.attach(inbox, old, good_until=math.inf)
        await send(one, inbox.topic, "e1")
        await until(world, lambda: before.is_handling)
        assert await before.detach() is True
        assert before.is_handling
        new = Desk()
        after = await two.attach(inbox, new, good_until=math.inf)
        await send(one, inbox.topic, "e2")
        await until(world, lambda: new.ids == ["e2"])
        released.set()
        await until(world, lambda: new.ids == ["e2", "e1"])
        await send(one, inbox.topic, "e3")
        await until(world, lambda: new.ids == ["e2", "e1", "e3"])
        assert not after.is_quiesced
        assert old.ids == ["e1"]
        assert await before.detach() is False


async def nothing_of_a_late_ack_reaches_the_broker(make: MakeWorld) -> None:
    async with make(ack_window_s=2.0) as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        released = asyncio.Event()

        async def late(_: Sequence[Delivery]) -> Outcome:
            await released.wait()
            return Ack()

        before = await one.attach(inbox, Desk([late]), good_until=math.inf)
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

        async def late(_: Sequence[Delivery]) -> Outcome:
            await released.wait()
            return Nak("late")

        before = await mail.attach(inbox, Desk([late]), good_until=math.inf)
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
                lambda dead=dead: dead.attach(unmade, Desk(), good_until=math.inf),
                lambda dead=dead: dead.wait_for_handlers(0.0),
            ):
                await _raises_not_live(verb())
            for now in (dead.pause, dead.resume):
                _raises_not_live_now(now)
        await _raises_not_live(attachment.detach())
        for now in (
            attachment.quiesce,
            attachment.unquiesce,
            lambda: attachment.hold("a"),
            lambda: attachment.unhold("a"),
        ):
            _raises_not_live_now(now)
        _raises_not_live_now(lambda: attachment.prolong(math.inf))
        assert await other.waiting(unmade) is None
        assert await world.kept(inbox.topic) == 0
        backlog = await other.waiting(inbox)
        assert backlog is not None and backlog.open_pulls == 0


async def a_handler_that_fails_twice_gets_three_deliveries(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")

        async def broken(_: Sequence[Delivery]) -> Outcome:
            raise RuntimeError("broken on purpose")

        desk = Desk([broken, Nak("again")])
        await mail.attach(inbox, desk, good_until=math.inf)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: len(desk.calls) == 3)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        assert desk.lefts == [24, 23, 22]
        assert await world.kept(inbox.topic) == 0


async def a_failure_comes_back_behind_mail_that_waits(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1", "e2", "e3")
        desk = Desk([Nak("once")])
        await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: len(desk.ids) == 4)
        assert desk.ids == ["e1", "e2", "e3", "e1"]


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
        assert await world.kept(shared.topic) == 0


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
        counts = [backlog.waiting for pair in pairs if (backlog := await mail.waiting(pair)) is not None]
        assert counts == [1, 0, 1, 0, 0]
        for bad in ("", "crewlet", "crewlet.agent..inbox", "crewlet.agent.*.inbox", "crewlet.agent.>", "a b.c", "x.y"):
            await _raises_misuse(mail.ensure_subscription(Subscription(bad, "g")))
        await _raises_misuse(mail.ensure_subscription(Subscription(world.topic("a"), "")))


async def a_pause_keeps_mail_from_handlers(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        async def wait(_: Sequence[Delivery]) -> Outcome:
            await released.wait()
            return Ack()

        desk = Desk([wait])
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


async def starting_and_stopping_twice_is_harmless(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        await mail.start()
        await mail.stop()
        await mail.stop()


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
        assert await world.kept(inbox.topic) == 0
        published = await mail.publish(inbox.topic, b"x", message_id="big")
        assert not published.is_duplicate


async def a_publish_that_is_not_admitted_sends_nothing(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)

        def refuse() -> None:
            raise Fenced("not any more")

        await _raises(mail.publish(inbox.topic, b"x", message_id="e1", admit=refuse), Fenced)
        assert await world.kept(inbox.topic) == 0
        published = await mail.publish(inbox.topic, b"x", message_id="e1", admit=lambda: None)
        assert not published.is_duplicate


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
        attachment.unhold("b")
        await until(world, lambda: desk.ids == ["e1"])


async def a_hold_taken_before_the_attach_stops_the_first_delivery(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        await send(one, inbox.topic, "w1", "w2")
        desk = Desk()
        attachment = await two.attach(inbox, desk, good_until=math.inf, holds=["paused"])
        await quiet(world)
        backlog = await one.waiting(inbox)
        assert desk.ids == [] and backlog is not None and (backlog.waiting, backlog.in_hand) == (2, 0)
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
        await _raises_no_mailbox(two.publish(inbox.topic, b"x", message_id="e1"))
        assert await world.kept(inbox.topic) == 0
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
        await one.attach(inbox, held, good_until=math.inf, holds=["a"])
        await two.attach(inbox, peer, good_until=math.inf)
        await one.attach(other_group, other, good_until=math.inf)
        await send(one, inbox.topic, "e1", "e2")
        await until(world, lambda: peer.ids == ["e1", "e2"] and other.ids == ["e1", "e2"])
        assert held.ids == []


async def an_ensured_subscription_keeps_its_mail(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        assert await one.ensure_subscription(inbox) is True
        await send(one, inbox.topic, "e1", "e2")
        assert await two.ensure_subscription(inbox) is False
        backlog = await two.waiting(inbox)
        assert backlog is not None and (backlog.waiting, backlog.in_hand) == (2, 0)
        desk = Desk()
        await two.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: desk.ids == ["e1", "e2"])


async def mail_to_nobody_is_refused_and_does_not_burn_its_id(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await _raises_no_mailbox(mail.publish(inbox.topic, b"x", message_id="e1"))
        await mail.ensure_subscription(inbox)
        backlog = await mail.waiting(inbox)
        assert backlog is not None and backlog.waiting == 0
        published = await mail.publish(inbox.topic, b"x", message_id="e1")
        assert not published.is_duplicate
        assert await world.kept(inbox.topic) == 1


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
        backlog = await two.waiting(sibling)
        assert backlog is not None and backlog.waiting == 1
        await two.delete_subscription(sibling)
        assert await world.kept(inbox.topic) == 0
        await _raises_no_mailbox(one.publish(inbox.topic, b"x", message_id="e2"))
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
            await _raises_misuse(two.list_subscriptions(bad))


async def one_deferral_makes_no_dead_letter(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        desk = Desk([Defer("once")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: attachment.is_quiesced)
        attachment.unquiesce()
        await until(world, lambda: desk.ids == ["e1", "e1"])
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        assert desk.lefts == [24, 23]
        assert await world.dead_letters(inbox.topic) == []


async def an_unprolonged_delivery_goes_to_the_next_reader(make: MakeWorld) -> None:
    async with make(ack_window_s=1.5) as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        async def stuck(_: Sequence[Delivery]) -> Outcome:
            await released.wait()
            return Ack()

        dead, heir = Desk([stuck]), Desk()
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

        async def slow(_: Sequence[Delivery]) -> Outcome:
            await released.wait()
            return Ack()

        desk, rival = Desk([slow]), Desk()
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
        attachment = await mail.attach(inbox, desk, good_until=world.clock.elapsed() + 0.5)
        await world.clock.sleep(0.6)
        backlog = await until_backlog(world, mail, inbox, lambda backlog: backlog.open_pulls == 0)
        await send(mail, inbox.topic, "e1")
        await quiet(world)
        backlog = await mail.waiting(inbox)
        assert desk.ids == [] and backlog is not None and backlog.waiting == 1
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
        assert await world.kept(inbox.topic) == 0


async def _raises_not_live(verb: object) -> None:
    await _raises(verb, NotLive)


async def _raises_misuse(verb: object) -> None:
    await _raises(verb, Misuse)


async def _raises_no_mailbox(verb: object) -> None:
    await _raises(verb, NoMailbox)


async def _raises(verb: object, kind: type[Exception]) -> None:
    assert asyncio.iscoroutine(verb)
    try:
        await verb
    except kind:
        return
    raise AssertionError(f"it did not raise {kind.__name__}")


def _raises_not_live_now(verb: object) -> None:
    assert callable(verb)
    try:
        verb()
    except NotLive:
        return
    raise AssertionError("it did not raise NotLive")
