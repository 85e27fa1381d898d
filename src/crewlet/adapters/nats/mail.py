"""The mail port over JetStream."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

import structlog

from crewlet.adapters.nats.attachment import NatsFeed
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.deadletters import NatsDeadLetters
from crewlet.adapters.nats.leftover import give_back
from crewlet.adapters.nats.lookup import Places
from crewlet.adapters.nats.publishing import ID_HEADER, publish_raw
from crewlet.adapters.nats.streams import STREAMS, ensure_stream, say_what_was_deleted, stream_of
from crewlet.adapters.nats.subscriptions import Consumers, Ensured
from crewlet.adapters.nats.translate import StreamGone
from crewlet.mail.consuming import Consumer
from crewlet.mail.deadletters import HEADROOM_BYTES
from crewlet.mail.patterns import check_message
from crewlet.mail.switchboard import NodeWide, Switched
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeadLetters, DeliveryJournal
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Misuse, NotLive, Unavailable
from crewlet.ports.inhand import NoSlots, Slots
from crewlet.ports.mail import (
    Attachment,
    Backlog,
    BatchOptions,
    DetachUnproven,
    Handler,
    Kept,
    MessageTooLarge,
    NoMailbox,
    Published,
    Subscription,
)

STOP_BUDGET_S = 5.0
ATTACH_PATIENCE_S = 15.0
ATTACH_PAUSE_S = 0.2

log = structlog.get_logger()


class NatsMail(NodeWide):
    """Durable mail on the broker behind a connection; see `crewlet.ports.mail.Mail` for the promises.

    Args:
        ack_window_s: how long a delivery in hand stays ours without a renewal: the lease TTL.
        delivery_budget: how often a message may be handed over before it is a dead letter.
        replicas: of the streams, where this instance is the first to make them.
        slots: where the parent process reads what is in hand; None where there is no parent.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        entropy: Entropy,
        ack_window_s: float,
        delivery_budget: int = 25,
        replicas: int = 1,
        slots: Slots | None = None,
    ) -> None:
        if ack_window_s <= 0 or delivery_budget < 1:
            raise Misuse("the ack window must be positive and the delivery budget 1 or more")
        super().__init__(clock)
        self._connection = connection
        self._clock = clock
        self._entropy = entropy
        self._delivery_budget = delivery_budget
        self._replicas = replicas
        self._slots: Slots = slots or NoSlots()
        self._consumers = Consumers(connection, entropy, ack_window_s)
        self._places = Places(connection)
        self._letters = NatsDeadLetters(connection, replicas=replicas, require_live=self._switchboard.require_live)

    async def start(self) -> None:
        """Make the streams that are not there. Harmless when repeated.

        Raises:
            Unavailable: nobody answered within the connection's bring-up time.
        """
        if self._switchboard.is_live:
            return
        budget_s = self._connection.bring_up_s
        await say_what_was_deleted(self._connection, budget_s=budget_s)
        for stream in STREAMS:
            await ensure_stream(self._connection, stream, replicas=self._replicas, budget_s=budget_s)
        self._switchboard.is_live = True

    async def give_back_left(self, journal: DeliveryJournal) -> int:
        """Hand back what a dead process had in hand; only where none but this one can be alive, and before it attaches.

        Returns:
            How many messages that were.

        Raises:
            Unavailable: some of it may come back at the end of its window only.
        """
        self._switchboard.require_live()
        left = [one for stream in STREAMS if stream.keeps_interest for one in await self._consumers.left(stream.name)]
        return await give_back(self._connection, left, journal)

    async def stop(self) -> None:
        """Detach whatever is attached, without waiting for handlers; bounded. Harmless when repeated."""
        if not self._switchboard.is_live:
            return
        self._switchboard.is_live = False
        attached = list(self._switchboard.attachments.values())
        await asyncio.gather(*(self._let_go(attachment) for attachment in attached))

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
        stream = stream_of(topic)
        check_message(message_id, headers)
        ceiling = self._connection.client.max_payload - HEADROOM_BYTES
        if len(data) > ceiling:
            raise MessageTooLarge(f"{len(data)} bytes are over the broker's ceiling for mail, {ceiling}")
        if stream.keeps_interest and not await self._consumers.is_covered(topic):
            raise NoMailbox(f"there is no mailbox at {topic}: what is sent there would be lost")
        # The broker's dedupe spans the whole stream; one id to two seats is two messages.
        published = await publish_raw(
            self._connection,
            topic,
            data,
            {**(headers or {}), ID_HEADER: message_id},
            message_id=f"{topic}/{message_id}" if once is None else f"once:{topic}/{once}",
            admit=admit,
        )
        self._places.remember(topic, message_id, published.sequence)
        return published

    async def ensure_subscription(self, subscription: Subscription) -> bool:
        self._switchboard.require_live()
        return (await self._consumers.ensure(subscription)).is_new

    async def delete_subscription(
        self, subscription: Subscription, *, admit: Callable[[], None] | None = None, patience_s: float = 5.0
    ) -> bool:
        self._switchboard.require_live()
        return await self._consumers.delete(subscription, admit=admit, patience_s=patience_s)

    async def list_subscriptions(self, pattern: str) -> Sequence[Subscription]:
        self._switchboard.require_live()
        return await self._consumers.listing(pattern)

    async def waiting(self, subscription: Subscription) -> Backlog | None:
        self._switchboard.require_live()
        return await self._consumers.backlog(subscription)

    async def find(self, subscription: Subscription, message_id: str) -> Kept | None:
        self._switchboard.require_live()
        return await self._places.find(subscription.topic, message_id)

    async def oldest_at(self, subscription: Subscription) -> datetime | None:
        self._switchboard.require_live()
        return await self._places.oldest_at(subscription.topic)

    @property
    def dead_letters(self) -> DeadLetters:
        return self._letters

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
        ensured = await self._ensure_patiently(subscription, good_until)
        feed = NatsFeed(
            self._connection,
            self._entropy,
            self._consumers,
            subscription,
            self._letters,
            window_s=ensured.ack_window_s,
            heard=ensured.delivered,
            delivery_budget=self._delivery_budget,
            slots=self._slots,
        )
        feed.good_until = good_until
        await feed.open()
        consumer = Consumer(
            subscription,
            feed,
            handler,
            switchboard=self._switchboard,
            clock=self._clock,
            good_until=good_until,
            holds=holds,
            options=options,
            journal=journal,
            delivery_budget=self._delivery_budget,
        )
        consumer.start()
        return consumer

    async def _ensure_patiently(self, subscription: Subscription, good_until: float) -> Ensured:
        """Through an election of the consumer's leader: a seat that cannot be attached is given up for a lease TTL."""
        began_at = self._clock.elapsed()
        ends = began_at + min(ATTACH_PATIENCE_S, (good_until - began_at) / 2)
        while True:
            try:
                return await self._consumers.ensure(subscription)
            except StreamGone:
                raise
            except Unavailable:
                if self._clock.elapsed() >= ends:
                    raise
            await self._clock.sleep(ATTACH_PAUSE_S)

    async def _let_go(self, attachment: Switched) -> None:
        try:
            async with asyncio.timeout(STOP_BUDGET_S):
                await attachment.let_go()
        except (DetachUnproven, NotLive, TimeoutError) as error:
            log.warning("mail_stop_unproven", error=repr(error))
