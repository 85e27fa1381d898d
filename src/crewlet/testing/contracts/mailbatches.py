"""The mail contract's checks on batches: partitions, their order, and what stops one halfway."""

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from crewlet.ports.mail import Ack, BatchOptions, Defer, Delivery, Nak, Outcome, Subscription
from crewlet.testing.contracts.mailworld import (
    LONG_S,
    Desk,
    MakeWorld,
    key,
    quiet,
    send,
    until,
    until_backlog,
    until_kept,
    when,
)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def dated(delivery: Delivery) -> datetime:
    """The instant of a test message: minutes after a fixed day, from what stands after the colon of its id."""
    return LONG_AGO + timedelta(minutes=int(delivery.id.partition(":")[2]))


async def a_deferred_partition_stops_its_batch(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b", "c")

        async def publish_and_defer(_: Sequence[Delivery]) -> Outcome:
            await send(mail, inbox.topic, "d")
            return Defer("not here")

        desk = Desk([publish_and_defer])
        options = BatchOptions(max_messages=10, partition_key=key)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: attachment.is_quiesced and attachment.in_hand == 0)
        assert desk.calls == [["a"]]
        attachment.unquiesce()
        await until(world, lambda: len(desk.ids) == 5)
        assert desk.ids == ["a", "a", "b", "c", "d"]


async def an_inbox_opened_while_its_batch_goes_back_begins_nothing_of_it(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b", "c")

        async def open_again_at_once(_: Sequence[Delivery]) -> Outcome:
            asyncio.get_running_loop().call_soon(attachment.unquiesce)
            return Defer("not here")

        desk = Desk([open_again_at_once])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=BatchOptions(max_messages=3))
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert desk.ids == ["a", "a", "b", "c"]


async def an_inbox_opened_as_its_only_mail_goes_back_is_handed_that_before_newer_mail(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()

        async def defer_and_open(inbox: Subscription) -> None:
            await mail.ensure_subscription(inbox)
            await send(mail, inbox.topic, "e1", "e2")

            async def open_again_at_once(_: Sequence[Delivery]) -> Outcome:
                asyncio.get_running_loop().call_soon(attachment.unquiesce)
                return Defer("not here")

            desk = Desk([open_again_at_once])
            attachment = await mail.attach(inbox, desk, good_until=math.inf)
            await until(world, lambda: len(desk.ids) == 3)
            assert desk.ids == ["e1", "e1", "e2"]
            await attachment.detach()

        for number in range(5):
            await defer_and_open(Subscription(world.topic(f"inbox{number}"), "g"))


async def the_conversation_that_waits_longest_goes_first(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "hot:5", "hot:7", "quiet:4", "tie:5", "odd:x")
        desk = Desk()
        options = BatchOptions(max_messages=10, partition_key=key, dated=dated)
        await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: len(desk.ids) == 5)
        assert desk.calls == [["quiet:4"], ["hot:5", "hot:7"], ["tie:5"], ["odd:x"]]


async def a_partition_is_handled_oldest_first(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "c:9", "c:8", "c:7")
        desk = Desk([Nak("all come back")])
        options = BatchOptions(max_messages=10, partition_key=key, dated=dated)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: len(desk.calls) == 1)
        attachment.hold("until the failed ones are due")
        await world.clock.sleep(1.5)
        await send(mail, inbox.topic, "c:6")
        attachment.unhold("until the failed ones are due")
        await until(world, lambda: len(desk.ids) >= 7)
        assert desk.calls == [["c:7", "c:8", "c:9"], ["c:6", "c:7", "c:8", "c:9"]]


async def a_hold_during_the_linger_does_not_end_the_loop(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b")
        desk = Desk()
        options = BatchOptions(max_messages=10, linger_s=0.5)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: attachment.in_hand == 2)
        attachment.hold("a")
        await until(world, lambda: attachment.in_hand == 0)
        await quiet(world)
        assert desk.calls == []
        attachment.unhold("a")
        await until(world, lambda: desk.ids == ["a", "b"])
        await send(mail, inbox.topic, "c")
        await until(world, lambda: desk.ids == ["a", "b", "c"])


async def one_failing_partition_spares_the_other(make: MakeWorld) -> None:
    async with make(delivery_budget=3) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "c1:1", "c2:1")
        calls: list[str] = []

        async def handler(deliveries: Sequence[Delivery]) -> Outcome:
            calls.append(deliveries[0].id)
            return Nak("always") if deliveries[0].id == "c1:1" else Ack()

        options = BatchOptions(max_messages=10, partition_key=key)
        await mail.attach(inbox, handler, good_until=math.inf, options=options)
        await until(world, lambda: calls.count("c1:1") == 3)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        assert sorted(calls) == ["c1:1", "c1:1", "c1:1", "c2:1"]
        assert [letter.id for letter in await world.dead_letters(inbox.topic)] == ["c1:1"]


async def mail_that_always_fails_takes_nothing_of_its_conversation_along(make: MakeWorld) -> None:
    async with make(delivery_budget=3) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a:poison", "a:2", "a:3")
        worked: list[str] = []

        async def handler(deliveries: Sequence[Delivery]) -> Outcome:
            ids = [delivery.id for delivery in deliveries]
            if "a:poison" in ids:
                return Nak("it broke")
            worked.extend(ids)
            return Ack()

        await mail.attach(inbox, handler, good_until=math.inf, options=BatchOptions(max_messages=10, partition_key=key))
        await until(world, lambda: len(worked) == 2)
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert worked == ["a:2", "a:3"]
        assert [letter.id for letter in await world.dead_letters(inbox.topic)] == ["a:poison"]


async def a_stop_or_pause_during_the_linger_delivers_nothing(make: MakeWorld) -> None:
    # The window is longer than any wait: what comes after the stop was given back.
    async with make(ack_window_s=LONG_S) as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        await send(one, inbox.topic, "e1")
        desk, later = Desk(), Desk()
        options = BatchOptions(max_messages=10, linger_s=2.0)
        attachment = await one.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: attachment.in_hand == 1)
        one.pause()
        await until(world, lambda: attachment.in_hand == 0)
        assert desk.calls == [] and await world.kept(inbox.topic) == 1
        one.resume()
        await until(world, lambda: attachment.in_hand == 1)
        await one.stop()
        assert desk.calls == [] and await world.kept(inbox.topic) == 1
        await two.attach(inbox, later, good_until=math.inf)
        await until(world, lambda: later.ids == ["e1"])


async def a_batch_has_its_bounds(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)

        def one_key(_: Delivery) -> str:
            return "all"

        def no_key(_: Delivery) -> str:
            raise ValueError("on purpose")

        desk = Desk()
        attachment = await mail.attach(
            inbox, desk, good_until=math.inf, holds=["a"], options=BatchOptions(max_messages=2, partition_key=one_key)
        )
        await send(mail, inbox.topic, "1", "2", "3", "4", "5")
        attachment.unhold("a")
        await until(world, lambda: len(desk.ids) == 5)
        assert desk.calls == [["1", "2"], ["3", "4"], ["5"]]

        for options, ids, calls in (
            (BatchOptions(max_messages=0, linger_s=-1.0, partition_key=one_key), ["6", "7"], [["6"], ["7"]]),
            (BatchOptions(max_messages=10, partition_key=no_key), ["8", "9"], [["8"], ["9"]]),
            (BatchOptions(max_messages=1000, partition_key=one_key), ["10", "11"], [["10", "11"]]),
        ):
            desk.calls.clear()
            await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
            await attachment.detach()
            attachment = await mail.attach(inbox, desk, good_until=math.inf, holds=["a"])
            attachment.reconfigure(options)
            await send(mail, inbox.topic, *ids)
            attachment.unhold("a")
            await until(world, lambda ids=ids: len(desk.ids) == len(ids))
            assert desk.calls == calls

        # One that runs takes what it is told at its next cycle.
        for most, ids, calls in ((1, ["12", "13"], [["12"], ["13"]]), (2, ["14", "15"], [["14", "15"]])):
            desk.calls.clear()
            attachment.hold("a")
            await until_backlog(world, mail, inbox, lambda backlog: (backlog.in_hand, backlog.open_pulls) == (0, 0))
            attachment.reconfigure(BatchOptions(max_messages=most, partition_key=one_key))
            await send(mail, inbox.topic, *ids)
            attachment.unhold("a")
            await until(world, lambda ids=ids: len(desk.ids) == len(ids))
            assert desk.calls == calls


async def mail_that_came_during_a_turn_is_taken_together(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        desk = Desk([when(released, Ack())])
        options = BatchOptions(max_messages=20, partition_key=key)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await send(mail, inbox.topic, "t:1")
        await until(world, lambda: attachment.is_handling)
        await send(mail, inbox.topic, "t:2", "t:3", "u:1", "t:4")
        released.set()
        await until(world, lambda: len(desk.ids) == 5)
        assert desk.calls == [["t:1"], ["t:2", "t:3", "t:4"], ["u:1"]]


async def each_delivery_has_its_own_headroom(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "t:1")
        lefts: list[list[int]] = []

        async def handler(deliveries: Sequence[Delivery]) -> Outcome:
            lefts.append([delivery.deliveries_left for delivery in deliveries])
            return Defer("once") if len(lefts) == 1 else Ack()

        options = BatchOptions(max_messages=10, partition_key=key)
        attachment = await mail.attach(inbox, handler, good_until=math.inf, options=options)
        await until(world, lambda: attachment.is_quiesced and attachment.in_hand == 0)
        await send(mail, inbox.topic, "t:2")
        attachment.unquiesce()
        await until(world, lambda: len(lefts) == 2)
        assert lefts == [[24], [23, 24]]


async def a_detach_hands_back_what_no_handler_has_begun(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        await send(one, inbox.topic, "a", "b", "c")
        released = asyncio.Event()

        desk, heir = Desk([when(released, Ack())]), Desk()
        options = BatchOptions(max_messages=10, partition_key=key)
        attachment = await one.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: attachment.is_handling)
        await attachment.detach()
        await two.attach(inbox, heir, good_until=math.inf)
        await until(world, lambda: heir.ids == ["b", "c"])
        released.set()
        await until(world, lambda: not attachment.is_handling)
        assert desk.ids == ["a"]


async def a_hold_between_partitions_hands_back_the_rest(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b", "c")

        async def hold_then_ack(_: Sequence[Delivery]) -> Outcome:
            attachment.hold("landed in between")
            return Ack()

        desk = Desk([hold_then_ack])
        options = BatchOptions(max_messages=10, partition_key=key)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, holds=["not yet"], options=options)
        attachment.unhold("not yet")
        await until(world, lambda: desk.ids == ["a"] and attachment.in_hand == 0)
        await until_kept(world, inbox.topic, 2)
        attachment.unhold("landed in between")
        await until(world, lambda: desk.ids == ["a", "b", "c"])


async def a_redelivery_of_what_is_in_hand_starts_nothing(make: MakeWorld) -> None:
    async with make(ack_window_s=1.0) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "e1")
        desk = Desk()
        options = BatchOptions(max_messages=10, linger_s=2.5)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: desk.ids != [])
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        await quiet(world, 1.5)
        assert desk.calls == [["e1"]]
        assert attachment.in_hand == 0
        await until_kept(world, inbox.topic, 0)
