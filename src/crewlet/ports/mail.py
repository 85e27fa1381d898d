"""Durable mail: subscriptions that keep what is published, and attachments that consume them.

A *subscription* `(topic, group)` is durable: it keeps every message published to its topic since it was made until
the message is settled, whether or not anything is attached. An *attachment* is this process consuming it. Two
attachments on one subscription would split its mail, so whoever attaches must hold the lease that makes it exclusive.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from crewlet.ports.errors import CrewletError, Unavailable

if TYPE_CHECKING:
    from crewlet.ports.deadletters import DeadLetters, DeliveryJournal


class Subscription(msgspec.Struct, frozen=True, order=True):
    """`topic` is a dotted subject without wildcards; `group` names the competing consumers, `agent-alice`."""

    topic: str
    group: str


class MailRefused(CrewletError):
    """The store will not take this message, now or on a repeat. Nothing was kept and the id is not burnt."""


class NoMailbox(MailRefused):
    """No subscription covers the topic, so the message would vanish."""


class MessageTooLarge(MailRefused):
    """The payload is over the ceiling."""


class StoreFull(Unavailable):
    """The store has no room left. What it holds is safe, and it takes mail again once there is room."""


class DetachUnproven(CrewletError):
    """It could not be proven that this process no longer has a pull open. The lease must be kept; try again."""


@dataclass(frozen=True, slots=True)
class Published:
    """The store holds the message.

    Attributes:
        sequence: its place in the stream.
        is_duplicate: the store already had a message with this id, and kept that one only.
    """

    sequence: int
    is_duplicate: bool = False


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One hand-over of one message.

    Attributes:
        id: the message id its publisher gave.
        data: the payload.
        sequence: its place in the stream, the same at every delivery.
        deliveries: how often it has been handed over, this time included: 1 at the first.
        deliveries_left: how often it may still come back after this: 0 on the last.
        published_at: the store's clock at the publish, UTC-aware.
    """

    id: str
    data: bytes
    sequence: int
    deliveries: int
    deliveries_left: int
    published_at: datetime


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Finished with: never deliver it again."""


class Nak(msgspec.Struct, frozen=True, gc=False):
    """Try again later: it comes back after a back-off of 1 s doubling to 30 s, behind mail that waits."""

    reason: str = ""


class Defer(msgspec.Struct, frozen=True, gc=False):
    """Not here, not now: back at once, at the head, and this attachment stops fetching until it is unquiesced."""

    reason: str


Outcome = Ack | Nak | Defer


class Bury(msgspec.Struct, frozen=True, gc=False):
    """Nothing that comes back could help: this one of the partition is dead-lettered at once, with all that it is.

    It is acked when the letter is confirmed, and waits on where that fails. The rest of the partition comes to the
    handler once more, at once.
    """

    delivery: Delivery
    reason: str


class Settling(msgspec.Struct, frozen=True):
    """The work is over, and the next partition of the batch may begin; the outcome comes later.

    Until it does, the handler counts as running for everybody who asks or waits. No further batch is taken before.
    """

    outcome: "asyncio.Future[Outcome]"


Answer = Outcome | Settling | Bury
Handler = Callable[[Sequence[Delivery]], Awaitable[Answer]]
"""Takes the deliveries of one partition, oldest first, and answers for all of them, or for one that it buries. It runs
in a task that no publisher's or caller's cancellation reaches. An exception counts as Nak and is logged. Handlers of
one attachment never overlap."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How deliveries are taken together.

    Attributes:
        max_messages: 1 to 100; other values are clamped.
        linger_s: how long to wait for more after the first, 0 to 60; other values are clamped.
        partition_key: names the conversation of a delivery; deliveries of one key go to the handler together. None, or
            a key function that raises, puts each delivery in a partition of its own.
        dated: the instant by which partitions and the deliveries inside one are ordered, oldest first; None, or a
            function that raises, keeps the order of arrival.
        preview: told of what was taken together when it makes more than one partition, before the first is handled.
    """

    max_messages: int = 1
    linger_s: float = 0.0
    partition_key: Callable[[Delivery], str] | None = None
    dated: Callable[[Delivery], datetime] | None = None
    preview: Callable[[Sequence[Delivery]], None] | None = None


class Attachment(Protocol):
    """This process consuming one subscription. At most one pull is open at a time, and nothing is prefetched."""

    @property
    def subscription(self) -> Subscription: ...

    @property
    def is_quiesced(self) -> bool: ...

    @property
    def holds(self) -> Collection[str]:
        """The names of the holds in force."""
        ...

    @property
    def in_hand(self) -> int:
        """How many deliveries this attachment has taken and not settled."""
        ...

    @property
    def is_handling(self) -> bool:
        """Whether a handler of this attachment is running."""
        ...

    def prolong(self, good_until: float) -> None:
        """The lease behind this attachment was renewed: it is good until this reading of `Clock.elapsed`.

        Every delivery in hand gets a fresh ack window from now, and pulls may stay open until then and no longer: with
        no renewal the attachment stops fetching by itself at that instant. `math.inf` where leases cannot lapse.
        Returns at once; the extension is sent in the background and repeated at the next call.
        """
        ...

    def quiesce(self) -> bool:
        """Stop fetching, stay attached. True when it was fetching."""
        ...

    def unquiesce(self) -> bool:
        """Fetch again (holds permitting). True when it was quiesced."""
        ...

    def hold(self, name: str) -> None:
        """Stop fetching for a named reason, in addition to any other. Idempotent."""
        ...

    def unhold(self, name: str) -> None:
        """Lift that reason; fetching goes on when no hold is left and it is not quiesced. Idempotent."""
        ...

    def reconfigure(self, options: BatchOptions) -> None:
        """Take batches differently from the next one on."""
        ...

    def disown(self) -> None:
        """From the detach on, not even a hand-back of what a running handler still has reaches the broker.

        Without this a handler that answers Nak or Defer after the detach hands its deliveries back, once, and only
        while their own ack window is surely still running. An Ack after the detach is dropped either way.
        """
        ...

    async def detach(self) -> bool:
        """Stop consuming, and prove that no pull of this attachment is open. Mail stays with the subscription.

        Deliveries in hand that no handler has begun go back at once. It does not wait for a running handler, and
        whatever that handler answers later can neither settle nor delay anything for the next attachment.

        Returns:
            True when this call detached it; False when it was detached already.

        Raises:
            DetachUnproven: the broker did not confirm. The attachment fetches nothing more, and the next call tries
                the proof again.

        Cancellation: the attachment fetches nothing more; unproven.
        """
        ...


class Mail(Protocol):
    """Publishing, subscriptions and attachments. Every verb on a stopped instance raises NotLive."""

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
        """Put a message on a topic.

        Args:
            once: what repeats are known by, in place of `message_id`: a replay is no repeat of what it replays.
            admit: called in the same step before each time that the message leaves, repeats included. What it raises
                ends the publish, and nothing more is sent.

        Raises:
            NoMailbox: no subscription covers the topic (agent and notification topics only). A seat's topic is covered
                by that seat's own mailbox alone, whoever else listens.
            MessageTooLarge: it is over the ceiling.
            StoreFull: there is no room for it; as with any `Unavailable` the id is not burnt.
            Unavailable: unknown; a repeat with the same `message_id` within two minutes is the same message.
        """
        ...

    async def ensure_subscription(self, subscription: Subscription) -> bool:
        """Make it if it is not there: detached, positioned at the earliest message. True when this call made it.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    async def delete_subscription(
        self, subscription: Subscription, *, admit: Callable[[], None] | None = None, patience_s: float = 5.0
    ) -> bool:
        """Delete it with the mail that waits on it. False when there was none.

        Either answer is the last word: nothing that this call sent can take effect afterwards, and take one that was
        made anew.

        Args:
            admit: called in the same step before each time that the request leaves (see `publish`).
            patience_s: for how long it is asked again while nobody answers.

        Raises:
            NotTaken: refused, or never sent: it had no effect, and will have none.
            Unavailable: it may have been deleted, or may be at any later time.

        Cancellation: as good as `Unavailable`.
        """
        ...

    async def list_subscriptions(self, pattern: str) -> Sequence[Subscription]:
        """Every durable subscription whose topic matches (`*` one token, `>` one or more at the end), whoever made it.

        Raises:
            Unavailable: nobody answered, or the answer was cut short. Never a partial list.
        """
        ...

    async def waiting(self, subscription: Subscription) -> "Backlog | None":
        """What lies on a subscription, or None when there is none.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    async def find(self, subscription: Subscription, message_id: str) -> "Kept | None":
        """The message of an id that a topic still keeps: it waits, or is in hand. None when the store has none.

        Raises:
            Unavailable: nobody answered, or more waits than can be looked through.
        """
        ...

    async def oldest_at(self, subscription: Subscription) -> datetime | None:
        """When the oldest message that a topic still keeps was published, by the store's clock; None with none.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    @property
    def dead_letters(self) -> "DeadLetters":
        """What used up its deliveries."""
        ...

    @property
    def tally(self) -> "MailTally":
        """What this instance has counted since it was made."""
        ...

    async def attach(
        self,
        subscription: Subscription,
        handler: Handler,
        *,
        good_until: float,
        holds: Collection[str] = (),
        options: BatchOptions | None = None,
        journal: "DeliveryJournal | None" = None,
    ) -> Attachment:
        """Consume a subscription, made first if it is not there. `holds` are in force before the first fetch.

        The ack window of a delivery is the store's lease TTL, given to the adapter when it is made. With a `journal`
        each delivery but the first is noted before it is worked, and each that comes back with a reason; a dead letter
        takes those notes along. Mail that came back without such a note more than once is worked with nothing else in
        hand, in case it kills whoever works it.

        Raises:
            Unavailable: nobody answered; nothing is attached.
        """
        ...

    def pause(self) -> None:
        """Stop handing deliveries to handlers, on every attachment of this instance."""
        ...

    def resume(self) -> None:
        """Undo `pause`."""
        ...

    async def wait_for_handlers(self, timeout_s: float | None) -> int:
        """Wait until no handler runs; None waits without a bound. Returns how many still run (0 when done)."""
        ...


@dataclass(frozen=True, slots=True)
class Backlog:
    """What lies on a subscription: never delivered, delivered and unsettled, and attachments' open pulls.

    Attributes:
        is_paused: the store gives nothing of it to anybody, since a person asked it, and not Crewlet, for that.
    """

    waiting: int
    in_hand: int
    open_pulls: int
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A message that is not settled yet: its place in the stream, the store's clock at its publish, and its payload."""

    sequence: int
    published_at: datetime
    data: bytes


@dataclass(frozen=True, slots=True)
class MailTally:
    """Counts since the start: dead letters made, and burials that failed and left the mail where it was."""

    dead_letters: int = 0
    failed_burials: int = 0
