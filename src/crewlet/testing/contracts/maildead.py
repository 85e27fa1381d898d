"""The checks that every mail port answers to: dead letters, their history, and where a message lies."""

import asyncio
import math
from collections.abc import Sequence

from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.ports.deadletters import DeadLetter
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import Ack, BatchOptions, Bury, Defer, Delivery, Mail, Nak, Outcome, Subscription
from crewlet.testing.contracts.mailworld import (
    Desk,
    MailWorld,
    MakeWorld,
    key,
    quiet,
    raises,
    send,
    until,
    until_backlog,
    until_kept,
    when,
)


async def a_dead_letter_tells_who_had_it_and_why_it_came_back(make: MakeWorld) -> None:
    async with make(delivery_budget=3) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        await mail.publish(inbox.topic, b"text", message_id="e1", headers={"Kind": "test"})
        first, second = [await _journal(world, owner) for owner in ("n1:a", "n2:b")]
        attachment = await mail.attach(inbox, Desk([Nak("first\nline")]), good_until=math.inf, journal=first)
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 1 and backlog.open_pulls == 1)
        await attachment.detach()
        desk = Desk([Defer("second"), Nak("third")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, journal=second)
        await until(world, lambda: attachment.is_quiesced)
        attachment.unquiesce()
        (letter,) = await _letters(world, mail, inbox.topic, 1)
        assert (letter.message_id, letter.data, letter.headers) == ("e1", b"text", {"Kind": "test"})
        assert letter.subscription == inbox
        assert (letter.deliveries, letter.reason) == (3, "third")
        assert letter.published_at <= letter.buried_at
        told = [(each.number, each.owner, each.reason) for each in letter.history]
        assert told == [(1, "n1:a", "first line"), (2, "n2:b", "second"), (3, "n2:b", "third")]
        assert mail.tally.dead_letters == 1


async def a_message_whose_readers_died_is_buried_unrun_with_their_names(make: MakeWorld) -> None:
    async with make(delivery_budget=2, ack_window_s=1.5) as world:
        sender = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        released = asyncio.Event()

        for owner in ("n1:a", "n2:b"):
            dying = await world.client()
            desk = Desk([when(released, Ack())])
            attachment = await dying.attach(inbox, desk, good_until=math.inf, journal=await _journal(world, owner))
            if owner == "n1:a":
                await send(sender, inbox.topic, "e1")
            await until(world, lambda attachment=attachment: attachment.is_handling)
            attachment.disown()
        heir, desk = await world.client(), Desk()
        await heir.attach(inbox, desk, good_until=math.inf, journal=await _journal(world, "n3:c"))
        (letter,) = await _letters(world, sender, inbox.topic, 1)
        released.set()
        assert desk.calls == []
        assert letter.deliveries == 3
        assert [(each.number, each.owner, each.reason) for each in letter.history] == [(2, "n2:b", "")]
        assert "2 deliveries are used up" in letter.reason and "died" in letter.reason
        assert (heir.tally.dead_letters, heir.tally.failed_burials) == (1, 0)
        await until_backlog(world, sender, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        await until_kept(world, inbox.topic, 0)


async def a_first_delivery_is_never_noted(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        journal = await _journal(world, "n1:a")
        desk = Desk([Ack(), Defer("handed over")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf, journal=journal)
        await send(mail, inbox.topic, "e1", "e2")
        await until(world, lambda: attachment.is_quiesced)
        kept = await mail.find(inbox, "e2")
        assert kept is not None
        assert await journal.history(inbox, kept.sequence, kept.published_at) == ()
        assert await journal.history(inbox, kept.sequence - 1, kept.published_at) == ()


async def dead_letters_are_listed_in_pages_and_leave_by_name(make: MakeWorld) -> None:
    async with make(delivery_budget=1) as world:
        mail = await world.client()
        one, two = Subscription(world.topic("one"), "g"), Subscription(world.topic("two"), "h")
        for inbox, ids in ((one, ("a", "b", "c")), (two, ("d",))):
            await mail.attach(inbox, Desk([Nak("no")] * 3), good_until=math.inf)
            await send(mail, inbox.topic, *ids)
            await _letters(world, mail, inbox.topic, len(ids))
        letters = mail.dead_letters
        first = await letters.page(one.topic, limit=2)
        assert [each.message_id for each in first.letters] == ["a", "b"]
        assert first.next == first.letters[-1].id
        rest = await letters.page(one.topic, limit=2, after=first.next)
        assert ([each.message_id for each in rest.letters], rest.next) == (["c"], None)
        every = await letters.page(world.topic(">"), limit=200)
        assert [each.message_id for each in every.letters] == ["a", "b", "c", "d"]
        assert (await letters.page(world.topic("on"))).letters == []
        a, b = first.letters
        assert await letters.get(a.id) == a
        assert await letters.latest(one, "b") == b
        assert await letters.latest(two, "b") is None
        place, _, mark = a.id.partition("-")
        assert await letters.get(f"{place}-{'0' * len(mark)}") is None
        assert await letters.remove(f"{place}-{'0' * len(mark)}") is False
        assert await letters.remove(a.id) is True
        assert await letters.remove(a.id) is False
        assert await letters.get(a.id) is None
        assert [each.message_id for each in (await letters.page(one.topic)).letters] == ["b", "c"]
        for bad in ("", "1", "x-00000000", "0-00000000", "1-0000000g", "1-00", "²-00000000"):
            await raises(letters.get(bad), Misuse)


async def a_message_is_found_for_as_long_as_it_is_not_settled(make: MakeWorld) -> None:
    async with make() as world:
        mail, other = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        assert await mail.find(inbox, "e2") is None
        assert await mail.oldest_at(inbox) is None
        await send(mail, inbox.topic, "e1", "e2")
        first, second = await other.find(inbox, "e1"), await other.find(inbox, "e2")
        assert first is not None and second is not None and first.sequence < second.sequence
        assert (first.data, second.data) == (b"e1", b"e2")
        assert await mail.find(inbox, "e2") == second
        assert await other.oldest_at(inbox) == first.published_at
        assert await mail.find(inbox, "never sent") is None
        released = asyncio.Event()

        attachment = await mail.attach(inbox, Desk([Ack(), when(released, Ack())]), good_until=math.inf)
        await until(world, lambda: attachment.is_handling and attachment.in_hand == 1)
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 1))
        assert await other.find(inbox, "e1") is None
        assert await other.find(inbox, "e2") == second
        released.set()
        await until_backlog(world, mail, inbox, lambda backlog: backlog.in_hand == 0)
        assert await other.find(inbox, "e2") is None and await mail.find(inbox, "e2") is None


async def a_replay_is_no_repeat_of_what_it_replays(make: MakeWorld) -> None:
    async with make() as world:
        one, two = await world.client(), await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await one.ensure_subscription(inbox)
        first = await one.publish(inbox.topic, b"x", message_id="e1")
        again = await one.publish(inbox.topic, b"x", message_id="e1", once="replay of e1")
        repeat = await two.publish(inbox.topic, b"x", message_id="e1", once="replay of e1")
        assert (first.is_duplicate, again.is_duplicate, repeat.is_duplicate) == (False, False, True)
        assert await world.kept(inbox.topic) == 2
        desk = Desk()
        await two.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: desk.ids == ["e1", "e1"])
        await quiet(world)
        assert desk.lefts == [24, 24]


async def what_a_handler_buries_is_kept_whole_and_the_rest_of_its_conversation_is_worked(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        whole = bytes(range(256)) * 800
        for name, data in (("a:1", b"1"), ("a:bad", whole), ("a:2", b"2"), ("a:worse", b"\xff"), ("b:1", b"1")):
            await mail.publish(inbox.topic, data, message_id=name, headers={"Kind": name})
        desk = Desk([judged] * 4)
        await mail.attach(inbox, desk, good_until=math.inf, options=BatchOptions(10, partition_key=key))
        bad, worse = await _letters(world, mail, inbox.topic, 2)
        await until_backlog(world, mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert desk.calls == [["a:1", "a:bad", "a:2", "a:worse"], ["a:1", "a:2", "a:worse"], ["a:1", "a:2"], ["b:1"]]
        assert (bad.message_id, bad.data, bad.headers) == ("a:bad", whole, {"Kind": "a:bad"})
        assert (bad.deliveries, bad.reason) == (1, "not an event: it is in bad words")
        assert (worse.message_id, worse.data) == ("a:worse", b"\xff")
        await until_kept(world, inbox.topic, 0)


async def what_is_to_be_buried_past_the_lease_or_after_a_detach_goes_to_the_next_reader(make: MakeWorld) -> None:
    async with make() as world:
        mail = await world.client()
        for how in ("detach", "lease"):
            inbox = Subscription(world.topic(how), "g")
            await mail.ensure_subscription(inbox)
            await mail.publish(inbox.topic, b"\xff", message_id=f"{how}:bad")
            released = asyncio.Event()

            async def late(deliveries: Sequence[Delivery], released: asyncio.Event = released) -> Outcome | Bury:
                await released.wait()
                return await judged(deliveries)

            good_until = math.inf if how == "detach" else world.clock.elapsed() + 2.0
            attachment = await mail.attach(inbox, late, good_until=good_until)
            await until(world, lambda attachment=attachment: attachment.is_handling)
            if how == "detach":
                await attachment.detach()
            else:
                await world.clock.sleep(2.1)
            released.set()
            await until(world, lambda attachment=attachment: attachment.in_hand == 0)
            assert await world.dead_letters(inbox.topic) == [] and await world.kept(inbox.topic) == 1
            await attachment.detach()
            await mail.attach(inbox, judged, good_until=math.inf)
            (letter,) = await _letters(world, mail, inbox.topic, 1)
            assert letter.deliveries == 2


async def judged(deliveries: Sequence[Delivery]) -> Outcome | Bury:
    """Buries what does not begin with a digit, one a call."""
    bad = [each for each in deliveries if not each.data[:1].isdigit()]
    return Bury(bad[0], "not an event: it is in bad words") if bad else Ack()


async def _journal(world: MailWorld, owner: str) -> Journal:
    return Journal(await world.cells(DELIVERIES_BUCKET), owner, world.clock)


async def _letters(world: MailWorld, mail: Mail, topic: str, count: int) -> Sequence[DeadLetter]:
    """Wait until a topic has so many dead letters."""
    ends = world.clock.elapsed() + 60.0
    while len(found := (await mail.dead_letters.page(topic)).letters) < count:
        assert world.clock.elapsed() < ends, f"there are {len(found)} dead letters"
        await world.clock.sleep(0.02)
    assert len(found) == count
    return found
