"""The mail contract's checks on handlers that end their work before they know its outcome."""

import asyncio
import math
from collections.abc import Sequence

from crewlet.ports.mail import Ack, BatchOptions, Defer, Delivery, Outcome, Settling, Subscription
from crewlet.testing.contracts.mailworld import Desk, MakeWorld, quiet, send, until, until_backlog, until_kept


def _later() -> "asyncio.Future[Outcome]":
    return asyncio.get_running_loop().create_future()


async def what_settles_later_stops_no_other_partition_but_the_next_batch(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b", "c")
        known = _later()
        previews: list[list[str]] = []

        def preview(deliveries: Sequence[Delivery]) -> None:
            previews.append([delivery.id for delivery in deliveries])

        desk = Desk([Settling(known)])
        options = BatchOptions(max_messages=2, preview=preview)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=options)
        await until(world, lambda: desk.calls == [["a"], ["b"]])
        await quiet(world)
        assert desk.calls == [["a"], ["b"]]
        assert previews == [["a", "b"]]
        assert attachment.is_handling
        assert await mail.wait_for_handlers(0.0) == 1
        backlog = await mail.waiting(inbox)
        assert backlog is not None and backlog.in_hand == 1
        known.set_result(Ack())
        await until(world, lambda: desk.ids == ["a", "b", "c"])
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert not attachment.is_handling
        await until_kept(world, inbox.topic, 0)


async def what_settles_later_goes_back_with_its_batch(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b", "c")
        known = _later()

        async def defer(_: Sequence[Delivery]) -> Outcome:
            asyncio.get_running_loop().call_soon(known.set_result, Defer("not here either"))
            return Defer("not here")

        desk = Desk([Settling(known), defer])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=BatchOptions(max_messages=3))
        await until(world, lambda: attachment.is_quiesced and attachment.in_hand == 0)
        assert desk.calls == [["a"], ["b"]]
        attachment.unquiesce()
        await until(world, lambda: len(desk.ids) == 5)
        assert desk.ids == ["a", "b", "a", "b", "c"]


async def what_settles_after_a_detach_touches_nobody(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a", "b")
        known = [_later(), _later()]
        desk = Desk([Settling(known[0]), Settling(known[1])])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=BatchOptions(max_messages=2))
        await until(world, lambda: len(desk.calls) == 2)
        assert await attachment.detach() is True
        known[0].set_result(Ack())
        known[1].set_result(Defer("the seat is elsewhere"))
        successor = Desk()
        after = await mail.attach(inbox, successor, good_until=math.inf)
        await until(world, lambda: successor.ids == ["b"])
        assert not after.is_quiesced
        backlog = await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 1)
        assert backlog.waiting == 0
        await until_kept(world, inbox.topic, 1)
        assert await mail.wait_for_handlers(1.0) == 0
