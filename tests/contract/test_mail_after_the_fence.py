"""What a holder may still say to a real broker of deliveries whose lease, or whose own window, may be over."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from mail_worlds import NatsWorld, nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.ports.mail import Ack, Attachment, Defer, Delivery, Nak, Outcome, Subscription
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.mailworld import Desk, quiet, send, until, until_backlog

pytestmark = [pytest.mark.real, pytest.mark.alone]

WINDOW_S = 5.0
LEASE_S = 4.0
UNCONFIRMED = "mail_hand_back_unconfirmed"


@dataclass
class Words:
    """What is said of deliveries over a connection, and when. `lose` says which of it gets no answer, nor arrives."""

    connection: Connection
    said: list[tuple[bytes, float]] = field(default_factory=list[tuple[bytes, float]])
    lose: Callable[[bytes], bool] = lambda word: False

    def __post_init__(self) -> None:
        self._post, self._send = self.connection.post, self.connection.client.send
        self.connection.post = self._listen  # type: ignore[method-assign]
        self.connection.client.send = self._overhear  # type: ignore[method-assign]

    def _overhear(self, subject: str, reply: str, payload: bytes) -> None:
        if subject.startswith("$JS.ACK."):
            self.said.append((payload, self.connection.clock.elapsed()))
        self._send(subject, reply, payload)

    def _listen(self, subject: str, payload: bytes = b"", **more: Any) -> asyncio.Future[bytes]:
        if subject.startswith("$JS.ACK."):
            self.said.append((payload, self.connection.clock.elapsed()))
            if self.lose(payload):
                answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                answer.set_exception(TimeoutError("lost on purpose"))
                answer.exception()  # whoever asked may not look
                return answer
        return self._post(subject, payload, **more)

    def of(self, word: bytes) -> list[float]:
        return [at for said, at in self.said if said.startswith(word)]


@dataclass
class Stuck:
    """A turn that ends when it is told, as it is told."""

    outcome: Outcome
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _: Sequence[Delivery]) -> Outcome:
        await self.is_over.wait()
        return self.outcome


async def _in_hand(
    world: NatsWorld, turn: Stuck, *, name: str = "inbox", lease_s: float = math.inf
) -> tuple[Attachment, float, Words]:
    """A delivery that a handler works on: its attachment, an instant after it was handed over, and what is said."""
    mail = cast("NatsMail", await world.client())
    words = Words(mail._connection)  # pyright: ignore[reportPrivateUsage]
    inbox = Subscription(world.topic(name), "g")
    await mail.ensure_subscription(inbox)
    await send(mail, inbox.topic, "e1")
    attachment = await mail.attach(inbox, Desk([turn]), good_until=world.clock.elapsed() + lease_s)
    await until(world, lambda: attachment.is_handling)
    return attachment, world.clock.elapsed(), words


async def test_an_unanswered_hand_back_is_not_repeated_past_its_own_window(server: Server) -> None:
    async def one(outcome: Outcome) -> None:
        turn = Stuck(outcome)
        attachment, taken_at, words = await _in_hand(world, turn, name=type(outcome).__name__)
        words.lose = lambda word: word.startswith(b"-NAK")
        turn.is_over.set()
        await until(world, lambda: attachment.in_hand == 0)
        naks = words.of(b"-NAK")
        assert len(naks) > 1
        assert naks[-1] < taken_at + WINDOW_S

    async with nats_world(server.urls, ack_window_s=WINDOW_S) as world:
        await asyncio.gather(one(Defer("not here")), one(Nak("not now")))


async def test_a_stale_holder_says_nothing_once_its_window_is_over(server: Server) -> None:
    async def one(outcome: Outcome) -> None:
        turn, heir = Stuck(outcome), Stuck(Ack())
        stale, _, words = await _in_hand(world, turn, name=type(outcome).__name__)
        await stale.detach()
        successor = await world.client()
        desk = Desk([heir])
        attachment = await successor.attach(stale.subscription, desk, good_until=math.inf)
        await until(world, lambda: attachment.is_handling)
        turn.is_over.set()
        await until(world, lambda: stale.in_hand == 0)
        await until(world, lambda: isinstance(outcome, Ack) or stale.subscription.topic in told())
        stale.prolong(math.inf)
        await until_backlog(world, successor, stale.subscription, lambda backlog: backlog.in_hand == 1)
        assert words.said == []
        heir.is_over.set()
        await until_backlog(world, successor, stale.subscription, lambda backlog: backlog.in_hand == 0)
        assert desk.ids[:1] == ["e1"]

    def told() -> list[str]:
        return [line["topic"] for line in logs if line["event"] == UNCONFIRMED]

    with capture_logs() as logs:
        async with nats_world(server.urls, ack_window_s=WINDOW_S) as world:
            await asyncio.gather(*(one(outcome) for outcome in (Ack(), Nak("late"), Defer("late"))))


async def test_an_extension_after_the_detach_is_not_sent(server: Server) -> None:
    async with nats_world(server.urls) as world:
        turn = Stuck(Ack())
        stale, _, words = await _in_hand(world, turn)
        stale.prolong(math.inf)
        detaching = asyncio.create_task(stale.detach())
        await detaching
        stale.prolong(math.inf)
        await quiet(world, 0.1)
        assert words.said == []
        turn.is_over.set()


async def test_a_hand_back_after_a_fenced_release_is_said_once(server: Server) -> None:
    async with nats_world(server.urls) as world:
        turn = Stuck(Defer("fenced"))
        stale, _, words = await _in_hand(world, turn)
        await stale.detach()
        words.lose = lambda word: True
        with capture_logs() as logs:
            turn.is_over.set()
            await until(world, lambda: stale.in_hand == 0)
            await until(world, lambda: UNCONFIRMED in [line["event"] for line in logs])
        assert [word for word, _ in words.said] == [b"-NAK"]
        assert [line["ids"] for line in logs if line["event"] == UNCONFIRMED] == [["e1"]]


async def test_nothing_is_repeated_past_the_lease(server: Server) -> None:
    async def one(outcome: Outcome) -> None:
        turn = Stuck(outcome)
        attachment, taken_at, words = await _in_hand(world, turn, name=type(outcome).__name__, lease_s=LEASE_S)
        words.lose = lambda word: True
        turn.is_over.set()
        await until(world, lambda: attachment.in_hand == 0)
        assert words.said
        assert all(at < taken_at + LEASE_S for _, at in words.said[1:])

    async with nats_world(server.urls) as world:
        await asyncio.gather(one(Ack()), one(Defer("lapsed")))


async def test_an_extension_that_was_lost_leaves_the_old_window_in_force(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=WINDOW_S) as world:
        turn = Stuck(Defer("fenced"))
        attachment, taken_at, words = await _in_hand(world, turn)
        words.lose = lambda word: word == b"+WPI"
        await world.clock.sleep(WINDOW_S / 2)
        attachment.prolong(math.inf)
        await until(world, lambda: words.of(b"+WPI") != [])
        attachment.quiesce()
        detaching = asyncio.create_task(attachment.detach())
        await until(world, lambda: world.clock.elapsed() > taken_at + WINDOW_S)
        turn.is_over.set()
        await until(world, lambda: attachment.in_hand == 0)
        assert await detaching
        assert words.of(b"-NAK") == []


async def test_an_extension_that_was_confirmed_lets_a_hand_back_through(server: Server) -> None:
    async with nats_world(server.urls, ack_window_s=WINDOW_S) as world:
        turn = Stuck(Defer("fenced"))
        attachment, taken_at, words = await _in_hand(world, turn)
        while world.clock.elapsed() < taken_at + WINDOW_S:
            attachment.prolong(math.inf)
            await world.clock.sleep(WINDOW_S / 8)
        await attachment.detach()
        turn.is_over.set()
        await until(world, lambda: attachment.in_hand == 0)
        assert len(words.of(b"-NAK")) == 1


async def test_no_delivery_is_extended_past_the_lease(server: Server) -> None:
    async with nats_world(server.urls) as world:
        turn = Stuck(Ack())
        attachment, _, words = await _in_hand(world, turn)
        attachment.prolong(world.clock.elapsed())
        await quiet(world, 0.1)
        assert words.said == []
        attachment.prolong(math.inf)
        await until(world, lambda: len(words.of(b"+WPI")) == 1)
        turn.is_over.set()
        await until(world, lambda: attachment.in_hand == 0)
