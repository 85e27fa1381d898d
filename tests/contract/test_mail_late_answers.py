"""Pulls of a real broker whose answers come late or never: after a stall, or after the connection was away."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from mail_worlds import NatsWorld, nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats.mail import NatsMail
from crewlet.ports.inhand import NoSlots, Slots
from crewlet.ports.mail import Ack, Attachment, Mail, Nak, Subscription
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.mailworld import Desk, quiet, send, until, until_backlog, when
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = [pytest.mark.real, pytest.mark.alone]

WINDOW_S = 120.0
"""Longer than any wait here: what comes back before was handed back."""
MARGIN_S = 1.0


@dataclass
class ToldSlot:
    """What one attachment tells its parent: each delivery in hand with the end of its window."""

    ends: dict[str, float] = field(default_factory=dict[str, float])

    def take(self) -> "ToldSlot":
        return self

    def write(self, in_hand: Sequence[tuple[str, float]]) -> None:
        self.ends = {place: end for place, end in in_hand if place.startswith("$JS.ACK.")}

    def close(self) -> None:
        self.ends = {}


@dataclass
class Slow:
    """A link that keeps deliveries back until told, and notes when each pull passed it.

    Attributes:
        pulls: by the world's clock.
        late: the deliveries kept back.
    """

    link: FaultyLink
    world: NatsWorld
    keeps: bool = False
    pulls: list[float] = field(default_factory=list[float])
    late: list[bytes] = field(default_factory=list[bytes])

    def __post_init__(self) -> None:
        self.link.on_request, self.link.on_answer = self._request, self._answer

    def _request(self, frame: Frame) -> bytes:
        if b".CONSUMER.MSG.NEXT." in frame.head:
            self.pulls.append(self.world.clock.elapsed())
        return frame.raw

    def _answer(self, frame: Frame) -> bytes | None:
        if self.keeps and frame.carries_message and b" $JS.ACK." in frame.head:
            self.late.append(frame.raw)
            return None
        return frame.raw

    def let_go(self) -> None:
        self.keeps = False
        for raw in self.late:
            self.link.inject(raw)
        self.late.clear()


@asynccontextmanager
async def behind_a_slow_link(
    server: Server, slots: Slots | None = None
) -> AsyncGenerator[tuple[NatsWorld, Slow, Mail, Mail]]:
    """A seat's mail behind a link, and a sender's that is not."""
    async with FaultyLink(server.url) as link, nats_world((link.url,), ack_window_s=WINDOW_S) as world:
        slow = Slow(link, world)
        connection = await world.connect()
        mail = NatsMail(
            connection, clock=world.clock, entropy=world.entropy, ack_window_s=WINDOW_S, slots=slots or NoSlots()
        )
        await mail.start()
        async with nats_world(server.urls, ack_window_s=WINDOW_S) as beside:
            try:
                yield world, slow, mail, await beside.client()
            finally:
                link.heal()
                await mail.stop()


async def test_the_window_of_a_delivery_that_came_after_its_pull_was_given_up_counts_from_that_pull(
    server: Server,
) -> None:
    slots = ToldSlot()
    async with behind_a_slow_link(server, slots) as (world, slow, mail, sender):
        inbox, turns = Subscription(world.topic("inbox"), "g"), [asyncio.Event(), asyncio.Event()]
        desk = Desk([when(turn, Ack()) for turn in turns])
        await mail.ensure_subscription(inbox)
        await send(sender, inbox.topic, "e1")
        slow.keeps = True
        await mail.attach(inbox, desk, good_until=math.inf)
        await until(world, lambda: len(slow.late) == 1 and len(slow.pulls) >= 2)
        taken = len(slow.pulls)
        slow.let_go()
        await until(world, lambda: desk.ids == ["e1"] and len(slots.ends) == 1)
        assert max(slots.ends.values()) <= slow.pulls[0] + WINDOW_S - MARGIN_S

        # Nobody knows which of the two pulls the late one answered: the second may have the next message handed to it.
        slow.keeps = True
        await send(sender, inbox.topic, "e2")
        await until(world, lambda: len(slow.late) == 1)
        turns[0].set()
        await until(world, lambda: len(slow.pulls) > taken)
        slow.let_go()
        await until(world, lambda: desk.ids == ["e1", "e2"] and len(slots.ends) == 1)
        assert max(slots.ends.values()) <= slow.pulls[taken - 1] + WINDOW_S - MARGIN_S
        turns[1].set()
        await until_backlog(world, sender, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))

        # A pull that the broker says is over settles it: what comes later is told from its own pull on.
        settled = len(slow.pulls)
        await until(world, lambda: len(slow.pulls) >= settled + 2)
        desk.answers.append(when(held := asyncio.Event(), Ack()))
        await send(sender, inbox.topic, "e3")
        await until(world, lambda: desk.ids[2:] == ["e3"] and len(slots.ends) == 1)
        assert max(slots.ends.values()) > slow.pulls[settled - 1] + WINDOW_S - MARGIN_S
        held.set()


@pytest.mark.parametrize("close", ["held", "lapsed"])
async def test_no_pull_is_asked_at_a_reconnect_that_was_worked_out_before_the_gate_closed(
    server: Server, close: str
) -> None:
    gates: dict[str, Callable[[NatsWorld, Attachment], None]] = {
        "held": lambda _, attachment: attachment.hold("paused"),
        "lapsed": lambda world, attachment: attachment.prolong(world.clock.elapsed()),
    }
    async with behind_a_slow_link(server) as (world, slow, mail, sender):
        inbox, desk = Subscription(world.topic("inbox"), "g"), Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await until_backlog(world, sender, inbox, lambda backlog: backlog.open_pulls == 1)
        slow.link.refuse()
        await until(world, lambda: not world.connections[0].is_connected)
        await world.clock.sleep(2.5)  # past the pull that was open: the next one waits for the connection
        gates[close](world, attachment)
        slow.pulls.clear()
        await slow.link.accept()
        await until(world, lambda: world.connections[0].is_connected)
        await send(sender, inbox.topic, "e1")
        await quiet(world)
        assert slow.pulls == []
        backlog = await mail.waiting(inbox)
        assert backlog is not None and (backlog.waiting, backlog.in_hand) == (1, 0)
        attachment.unhold("paused")
        attachment.prolong(math.inf)
        await until(world, lambda: desk.ids == ["e1"])


async def test_mail_that_was_sent_to_an_attachment_and_never_came_is_with_the_next_reader_at_once(
    server: Server,
) -> None:
    async with behind_a_slow_link(server) as (world, slow, mail, sender):
        inbox, desk, heir = Subscription(world.topic("inbox"), "g"), Desk(), Desk()
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        slow.keeps = True
        await send(sender, inbox.topic, "e1", "e2")
        await until(world, lambda: len(slow.late) == 2)
        slow.late.clear()
        with capture_logs() as logs:
            assert await attachment.detach()
        assert [line["messages"] for line in logs if line["event"] == "unheard_mail_given_back"] == [2]
        assert "unheard_mail_left" not in [line["event"] for line in logs]
        await sender.attach(inbox, heir, good_until=math.inf)
        await until(world, lambda: heir.ids == ["e1", "e2"])
        assert desk.ids == []
        await until_backlog(world, sender, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))


async def test_mail_that_is_dark_until_its_window_ends_is_told_of(server: Server) -> None:
    async with behind_a_slow_link(server) as (world, slow, mail, sender):
        inbox, desk = Subscription(world.topic("inbox"), "g"), Desk([Nak("later")])
        attachment = await mail.attach(inbox, desk, good_until=math.inf)
        await send(sender, inbox.topic, "e1")
        await until(world, lambda: desk.ids == ["e1"])
        slow.keeps = True
        await until(world, lambda: len(slow.late) == 1)
        with capture_logs() as logs:
            assert await attachment.detach()
        assert [line["messages"] for line in logs if line["event"] == "unheard_mail_left"] == [1]
        backlog = await sender.waiting(inbox)
        assert backlog is not None and (backlog.waiting, backlog.in_hand) == (0, 1)
