"""The checks that every mail port answers to: outcomes: what an ack, a nak and a deferral do.

Each check is a coroutine function over a `MakeWorld`; it raises AssertionError. No check measures time. The other
subjects are in the modules `mail...` beside this one.
"""

import asyncio
import math
from collections.abc import Sequence

from crewlet.ports.mail import Ack, Defer, Delivery, Nak, Outcome, Subscription
from crewlet.testing.contracts.mailworld import LONG_S, Desk, MakeWorld, quiet, send, until, until_backlog, until_kept


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
        await until_kept(world, inbox.topic, 0)


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
