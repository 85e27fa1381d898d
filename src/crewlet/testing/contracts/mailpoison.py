"""The mail contract's checks on mail that kills whoever works it, and on what lies beside it in the inbox."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.ports.mail import Ack, Attachment, BatchOptions, Defer, Delivery, Mail, Nak, Outcome, Subscription
from crewlet.testing.contracts.mailworld import Desk, MailWorld, MakeWorld, key, send, until, until_backlog

BUDGET = 6
"""Enough that the third and the fourth delivery are neither the first nor the last half."""
LOST_WINDOW_S = 0.6
TOGETHER = BatchOptions(max_messages=10, partition_key=key)


@dataclass
class Readers:
    """Readers in a row: one that is handed `poison` dies of it with all that it has in hand, and the next one attaches.

    Attributes:
        began: the ids of each call of a handler.
        worked: the ids of what was worked to its end.
        deaths: how many readers have died.
    """

    world: MailWorld
    inbox: Subscription
    poison: str
    began: list[list[str]] = field(default_factory=list[list[str]])
    worked: list[str] = field(default_factory=list[str])
    deaths: int = 0
    _at_rest: asyncio.Event = field(default_factory=asyncio.Event)
    _newest: Attachment | None = None

    async def next(self) -> Mail:
        """Attach one more reader, which begins when all that the one before it had is back."""
        mail = await self.world.client()
        journal = Journal(await self.world.cells(DELIVERIES_BUCKET), f"n{self.deaths}:a", self.world.clock)
        attachment = await mail.attach(
            self.inbox, self._work, good_until=math.inf, holds=["not yet"], options=TOGETHER, journal=journal
        )
        await self.world.clock.sleep(1.5 * self.world.ack_window_s if self._newest is not None else 0.0)
        attachment.unhold("not yet")
        self._newest = attachment
        return mail

    async def until_buried(self, letters: int) -> None:
        """Replace each reader that dies, until so many letters are written and nothing waits."""
        mail, dead = await self.next(), self.deaths

        async def is_over() -> bool:
            nonlocal mail, dead
            if self.deaths > dead and self._newest is not None:
                self._newest.disown()
                mail, dead = await self.next(), self.deaths
            return len(await self.world.dead_letters(self.inbox.topic)) >= letters

        ends = self.world.clock.elapsed() + 120.0
        while not await is_over():
            assert self.world.clock.elapsed() < ends, f"{self.deaths} deaths, worked: {self.worked}"
            await self.world.clock.sleep(0.02)
        await until_backlog(self.world, mail, self.inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))

    def release(self) -> None:
        """Let what is left of the dead end."""
        self._at_rest.set()

    async def _work(self, deliveries: Sequence[Delivery]) -> Outcome:
        ids = [delivery.id for delivery in deliveries]
        self.began.append(ids)
        if self.poison in ids:
            self.deaths += 1
            await self._at_rest.wait()
            return Defer("long dead")
        self.worked.extend(ids)
        return Ack()


async def mail_that_kills_its_reader_takes_nothing_along(make: MakeWorld) -> None:
    async with make(delivery_budget=BUDGET, ack_window_s=LOST_WINDOW_S) as world:
        sender = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await sender.ensure_subscription(inbox)
        await send(sender, inbox.topic, "a:1", "a:poison", "a:2", "a:3", "b:1", "b:2", "c:1")
        readers = Readers(world, inbox, "a:poison")
        await readers.until_buried(1)
        assert [letter.id for letter in await world.dead_letters(inbox.topic)] == ["a:poison"]
        assert readers.deaths == BUDGET, "it has all of its own deliveries"
        assert sorted(readers.worked) == ["a:1", "a:2", "a:3", "b:1", "b:2", "c:1"]
        assert [each for each in readers.worked if each.startswith("a")] == ["a:1", "a:2", "a:3"]
        assert [each for each in readers.worked if each.startswith("b")] == ["b:1", "b:2"]
        readers.release()


async def mail_that_a_living_reader_gave_back_is_still_taken_together(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, "a:1", "a:2", "b:1", "b:2")
        journal = Journal(await world.cells(DELIVERIES_BUCKET), "n1:a", world.clock)
        desk = Desk([Defer("not now")] * 4)
        attachment = await mail.attach(inbox, desk, good_until=math.inf, options=TOGETHER, journal=journal)
        for calls in (1, 2, 3, 4):
            await until(world, lambda calls=calls: len(desk.calls) == calls and attachment.in_hand == 0)
            attachment.unquiesce()
        await until(world, lambda: len(desk.calls) == 6)
        assert desk.calls == [["a:1", "a:2"]] * 5 + [["b:1", "b:2"]]


async def mail_that_stops_its_inbox_each_time_leaves_the_others_their_deliveries(make: MakeWorld) -> None:
    async with make(delivery_budget=BUDGET) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await send(mail, inbox.topic, *(f"{number}:poison" for number in range(2 * BUDGET)), "x:1", "x:2", "y:1")
        worked: dict[str, int] = {}

        async def work(deliveries: Sequence[Delivery]) -> Outcome:
            if "poison" in deliveries[0].id:
                attachment.hold("agent")
                return Nak("its agent died of it")
            worked.update((each.id, each.deliveries) for each in deliveries)
            return Ack()

        attachment = await mail.attach(
            inbox, work, good_until=math.inf, holds=["agent"], options=BatchOptions(max_messages=100, partition_key=key)
        )

        async def is_over() -> bool:
            if attachment.in_hand == 0:
                attachment.unhold("agent")
            return len(worked) == 3 or bool(await world.dead_letters(inbox.topic))

        ends = world.clock.elapsed() + 60.0
        while not await is_over():
            assert world.clock.elapsed() < ends, f"worked: {worked}"
            await world.clock.sleep(0.02)
        assert sorted(worked) == ["x:1", "x:2", "y:1"]
        assert max(worked.values()) < BUDGET
