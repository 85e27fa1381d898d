"""The mail twin: the mail port over a broker in memory, on any clock.

A test that runs whole fleets keeps one `TwinBroker` and gives every node a `TwinMail` of its own, so that a node can
die or freeze while the broker goes on.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

import structlog

from crewlet.mail.consuming import Consumer
from crewlet.mail.deadletters import letter_of
from crewlet.mail.patterns import check_message
from crewlet.mail.switchboard import NodeWide, either
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeadLetters, DeliveryJournal, Handling
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import (
    Attachment,
    Backlog,
    BatchOptions,
    Delivery,
    DetachUnproven,
    Handler,
    Kept,
    Published,
    Subscription,
)
from crewlet.testing.twins.deadletters import TwinDeadLetters
from crewlet.testing.twins.mailbroker import Message, TwinBroker, TwinPull

__all__ = ["TwinBroker", "TwinMail"]

T = TypeVar("T")

TROUBLE_PAUSE_S = 0.1

log = structlog.get_logger()

Fault = Callable[[str], Awaitable[None]]
"""Called with the name of each request before it reaches the broker; it may sleep, or raise Unavailable or NotTaken."""


class MailWire(Protocol):
    """What lies between one node and the broker."""

    async def ask(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        admit: Callable[[], None] | None = None,
        final_within_s: float | None = None,
    ) -> T:
        """Have an effect at the broker. It may take place more than once, or after the caller has gone.

        Args:
            admit: asked before each try; what it raises ends the tries.
            final_within_s: ask for so long, and answer only when none of the tries can take effect afterwards.

        Raises:
            NotTaken: no try had an effect, and none will.
            Unavailable: nobody answered.
        """
        ...

    async def crossing(self, sent_at: float) -> bool:
        """Wait until mail that left the broker then (on its clock) has come. False: it is lost on the way."""
        ...

    async def stirs(self, pull: TwinPull, seconds: float) -> None:
        """Wait until something happens to an open pull, or so long on the broker's clock."""
        ...


class PlainWire:
    """Everything arrives at once, but for what a fault does to requests on their way out."""

    def __init__(self, clock: Clock, fault: Fault | None = None) -> None:
        self._clock = clock
        self._fault = fault

    async def ask(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        admit: Callable[[], None] | None = None,
        final_within_s: float | None = None,
    ) -> T:
        del final_within_s  # there is one try
        if self._fault is not None:
            await self._fault(name)
        if admit is not None:
            admit()
        return effect()

    async def crossing(self, sent_at: float) -> bool:
        return True

    async def stirs(self, pull: TwinPull, seconds: float) -> None:
        pull.waiter = asyncio.get_running_loop().create_future()
        await either(asyncio.wait([pull.waiter]), self._clock.sleep(seconds))


class TwinMail(NodeWide):
    """The mail of one node on a `TwinBroker`.

    Args:
        clock: the node's own clock, where it differs from the broker's.
        fault: what happens to requests on their way; None lets all through.
        wire: what lies between, in place of a mere fault.
    """

    def __init__(
        self,
        broker: TwinBroker,
        *,
        clock: Clock | None = None,
        fault: Fault | None = None,
        wire: MailWire | None = None,
    ) -> None:
        super().__init__(clock or broker.clock)
        self._broker = broker
        self._clock = clock or broker.clock
        self._wire = wire or PlainWire(broker.clock, fault)
        self._letters = TwinDeadLetters(broker, self._ask)

    async def start(self) -> None:
        self._switchboard.is_live = True

    async def stop(self) -> None:
        if not self._switchboard.is_live:
            return
        self._switchboard.is_live = False
        for attachment in list(self._switchboard.attachments.values()):
            try:
                await attachment.let_go()
            except DetachUnproven as error:
                log.warning("mail_stop_unproven", error=repr(error))

    async def publish(
        self,
        topic: str,
        data: bytes,
        *,
        message_id: str,
        headers: dict[str, str] | None = None,
        once: str | None = None,
        admit: Callable[[], None] | None = None,
    ) -> Published:
        self._switchboard.require_live()
        check_message(message_id, headers)
        return await self._wire.ask(
            "publish",
            lambda: self._broker.publish(topic, data, message_id=message_id, headers=headers or {}, once=once),
            admit=admit,
        )

    async def ensure_subscription(self, subscription: Subscription) -> bool:
        self._switchboard.require_live()
        return await self._wire.ask("ensure_subscription", lambda: self._broker.ensure(subscription))

    async def delete_subscription(
        self, subscription: Subscription, *, admit: Callable[[], None] | None = None, patience_s: float = 5.0
    ) -> bool:
        self._switchboard.require_live()
        return await self._wire.ask(
            "delete_subscription", lambda: self._broker.delete(subscription), admit=admit, final_within_s=patience_s
        )

    async def list_subscriptions(self, pattern: str) -> Sequence[Subscription]:
        self._switchboard.require_live()
        return await self._wire.ask("list_subscriptions", lambda: self._broker.listing(pattern))

    async def waiting(self, subscription: Subscription) -> Backlog | None:
        self._switchboard.require_live()
        return await self._wire.ask("waiting", lambda: self._broker.backlog(subscription))

    async def find(self, subscription: Subscription, message_id: str) -> Kept | None:
        self._switchboard.require_live()
        kept = await self._wire.ask("find", lambda: self._broker.retained(subscription.topic))
        return next((Kept(each.sequence, each.published_at, each.data) for each in kept if each.id == message_id), None)

    async def oldest_at(self, subscription: Subscription) -> datetime | None:
        self._switchboard.require_live()
        kept = await self._wire.ask("find", lambda: self._broker.retained(subscription.topic))
        return kept[0].published_at if kept else None

    @property
    def dead_letters(self) -> DeadLetters:
        return self._letters

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        self._switchboard.require_live()
        return await self._wire.ask(name, effect)

    async def attach(
        self,
        subscription: Subscription,
        handler: Handler,
        *,
        good_until: float,
        holds: Collection[str] = (),
        options: BatchOptions | None = None,
        journal: DeliveryJournal | None = None,
    ) -> Attachment:
        self._switchboard.require_live()
        await self._wire.ask("attach", lambda: self._broker.ensure(subscription))
        consumer = Consumer(
            subscription,
            TwinFeed(self._broker, subscription, clock=self._clock, wire=self._wire),
            handler,
            switchboard=self._switchboard,
            clock=self._clock,
            good_until=good_until,
            holds=holds,
            options=options,
            journal=journal,
            delivery_budget=self._broker.delivery_budget,
        )
        consumer.start()
        return consumer


class _TooLate(Exception):
    """What was to be said would reach into somebody else's work."""


@dataclass(slots=True)
class _Held:
    delivery: Delivery
    headers: dict[str, str]
    window_ends: float
    is_prolonged: bool = True


class TwinFeed:
    """A `Feed` on the twin's broker."""

    def __init__(self, broker: TwinBroker, subscription: Subscription, *, clock: Clock, wire: MailWire) -> None:
        self._broker = broker
        self._subscription = subscription
        self._clock = clock
        self._wire = wire
        self._hand: dict[int, _Held] = {}
        self._arrived: deque[Delivery] = deque()
        self._finished: set[int] = set()
        self._opened: list[TwinPull] = []
        self._pull: TwinPull | None = None
        self._pull_sent_at = 0.0
        self._is_closing = False
        self._is_closed = False
        self.on_arrival: Callable[[], None] = lambda: None
        self.good_until = math.inf
        self._unconfirmed: dict[asyncio.Future[None], None] = {}
        self._prolonging: asyncio.Task[None] | None = None
        self._log = log.bind(topic=subscription.topic, group=subscription.group)

    @property
    def in_hand(self) -> int:
        return len(self._hand)

    @property
    def pull_expiry_s(self) -> float:
        return self._broker.pull_expiry_s

    async def take(self, count: int, wait_s: float) -> Sequence[Delivery]:
        if not self._arrived:
            await self._fill(count, wait_s)
        if self._is_closing:
            return ()
        return [self._arrived.popleft() for _ in range(min(count, len(self._arrived)))]

    def leftovers(self) -> Sequence[Delivery]:
        left, self._arrived = list(self._arrived), deque()
        return left

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        held = self._stop_prolonging(deliveries)
        self._finished.update(one.delivery.sequence for one in held)
        acking = asyncio.ensure_future(self._ack(held))
        self._unconfirmed[acking] = None
        acking.add_done_callback(self._unconfirmed.pop)

    async def _ack(self, held: Sequence[_Held]) -> None:
        for one in held:
            await self._reaches("ack", self._broker.ack, one.delivery.sequence)
            self._hand.pop(one.delivery.sequence, None)

    async def give_back(self, deliveries: Sequence[Delivery], delay_s: float) -> None:
        for one in self._stop_prolonging(deliveries):
            await self._reaches("nak", self._broker.nak, one.delivery.sequence, delay_s, admit=self._ours(one))
            self._hand.pop(one.delivery.sequence, None)

    async def give_back_late(self, deliveries: Sequence[Delivery]) -> None:
        await self.give_back(deliveries, 0.0)

    async def bury(self, delivery: Delivery, reason: str, history: Sequence[Handling]) -> bool:
        held = self._hand.get(delivery.sequence)
        if held is None:
            return False
        letter = letter_of(self._subscription, delivery, held.headers, reason, history)
        await self._wire.ask("dead_letter", lambda: self._broker.bury(letter.subject, delivery.data, letter.headers))
        return True

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._hand.pop(delivery.sequence, None)

    def prolong(self) -> None:
        if self._hand and (self._prolonging is None or self._prolonging.done()):
            self._prolonging = asyncio.create_task(self._prolong(), name=f"prolong {self._subscription.group}")

    def stop(self) -> None:
        self._is_closing = True
        if self._pull is not None:
            self._pull.stir()

    async def close(self) -> None:
        self.stop()
        try:
            await self._wire.ask("detach", self._close_pulls)
        except Unavailable as error:
            raise DetachUnproven(
                f"the broker did not confirm that no pull of {self._subscription.topic} is open"
            ) from error
        if self._pull is not None:
            self._collect(self._pull)
        while self._unconfirmed:
            await asyncio.wait(list(self._unconfirmed))

    def _open(self, count: int, wait_s: float) -> TwinPull:
        """At the broker. A request that comes after the proof of detach would have come before it on one connection."""
        pull = TwinPull(count, 0.0, is_ended=True) if self._is_closed else None
        pull = pull or self._broker.open_pull(self._subscription, count, wait_s)
        self._opened = [each for each in (*self._opened, pull) if not each.is_ended]
        return pull

    def _close_pulls(self) -> None:
        """At the broker: whatever of this attachment is open there, also what it never heard of."""
        self._is_closed = True
        for pull in self._opened:
            self._broker.close_pull(self._subscription, pull)

    async def _fill(self, count: int, wait_s: float) -> None:
        """Keep one pull open until it is answered or expires. A pull that nobody collects keeps what it got."""
        sent_at = self._clock.elapsed()
        try:
            pull = await self._wire.ask("pull", lambda: self._open(count, wait_s))
        except Unavailable:
            await self._clock.sleep(TROUBLE_PAUSE_S)
            return
        self._pull, self._pull_sent_at = pull, sent_at
        while not pull.is_ended and not self._is_closing:
            left = self._broker.seconds_to_next(self._subscription, pull)
            await self._wire.stirs(pull, left if math.isfinite(left) else 3600.0)
            self._broker.look(self._subscription)
        if self._is_closing:
            self._collect(pull)  # what was on its way when the pull was closed goes back with the rest
            return
        if pull.got and not await self._wire.crossing(pull.served_at):
            self._pull = None
            await self._clock.sleep(TROUBLE_PAUSE_S)
        elif not self._is_closing:
            self._collect(pull)
            if not pull.got and wait_s > 0 and not self._broker.has(self._subscription):
                await self._clock.sleep(TROUBLE_PAUSE_S)

    def _collect(self, pull: TwinPull) -> None:
        self._pull = None
        for message, deliveries in pull.got:
            self._arrive(message, deliveries)

    def _arrive(self, message: Message, deliveries: int) -> None:
        if message.sequence in self._finished:
            self._broker.ack(self._subscription, message.sequence)
            return
        window_ends = self._pull_sent_at + self._broker.ack_window_s
        held = self._hand.get(message.sequence)
        if held is not None:
            held.window_ends = window_ends
            return
        delivery = Delivery(
            id=message.id,
            data=message.data,
            sequence=message.sequence,
            deliveries=deliveries,
            deliveries_left=max(0, self._broker.delivery_budget - deliveries),
            published_at=message.published_at,
        )
        self._hand[message.sequence] = _Held(delivery, message.headers, window_ends)
        self._arrived.append(delivery)
        self.on_arrival()

    def _stop_prolonging(self, deliveries: Sequence[Delivery]) -> list[_Held]:
        held = [one for delivery in deliveries if (one := self._hand.get(delivery.sequence)) is not None]
        for one in held:
            one.is_prolonged = False
        return held

    async def _prolong(self) -> None:
        for one in list(self._hand.values()):
            now = self._clock.elapsed()
            if not one.is_prolonged or self._is_closing or now >= self.good_until:
                continue
            is_answered = await self._reaches("prolong", self._broker.prolong, one.delivery.sequence)
            if is_answered and self._clock.elapsed() < one.window_ends:
                one.window_ends = max(one.window_ends, now + self._broker.ack_window_s)

    def _ours(self, held: _Held) -> Callable[[], None]:
        """Admits a hand-back while the delivery's own window surely runs; past the lease only its first try."""
        margin_s = min(1.0, self._broker.ack_window_s / 10)
        tries = 0

        def admit() -> None:
            nonlocal tries
            tries += 1
            now = self._clock.elapsed()
            if now >= held.window_ends - margin_s or (tries > 1 and (now >= self.good_until or self._is_closing)):
                raise _TooLate

        return admit

    async def _reaches(
        self,
        name: str,
        effect: Callable[..., None],
        sequence: int,
        *more: float,
        admit: Callable[[], None] | None = None,
    ) -> bool:
        try:
            await self._wire.ask(name, lambda: effect(self._subscription, sequence, *more), admit=admit)
        except _TooLate:
            return False
        except Unavailable:
            self._log.warning("mail_request_lost", request=name)
            return False
        return True
