"""Which deliveries of an inbox belong together, and in which order."""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from crewlet.mail.batching import MAX_BATCH_MESSAGES
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import decode
from crewlet.ports.mail import BatchOptions, Delivery


class EventReader:
    """The events of one inbox's deliveries, each decoded once, however often it is asked for while it waits."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[Delivery, Envelope]] = {}

    def event(self, delivery: Delivery) -> Envelope:
        """The event of a delivery.

        Raises:
            msgspec.MsgspecError: it holds none.
        """
        known = self._read.get(delivery.sequence)
        if known is not None and known[0] is delivery:
            return known[1]
        if len(self._read) >= 2 * MAX_BATCH_MESSAGES:
            self._read.clear()  # of mail that went back unworked
        event = decode(delivery.data)
        self._read[delivery.sequence] = (delivery, event)
        return event

    def take(self, delivery: Delivery) -> Envelope:
        """The event of a delivery that is not asked for again. Raises as `event`."""
        event = self.event(delivery)
        del self._read[delivery.sequence]
        return event

    def conversation_of(self, delivery: Delivery) -> str:
        """The partition key of a delivery: its event's conversation, else one that nothing else shares.

        Raises:
            msgspec.MsgspecError: it holds no event; the delivery is then a partition of its own.
        """
        event = self.event(delivery)
        return f"conversation:{event.conversation}" if event.conversation else f"event:{event.id}"

    def dated(self, delivery: Delivery) -> datetime:
        """When a delivery's event happened, by its own word.

        Raises:
            ValueError: the event carries no usable instant; the order of arrival then stands.
        """
        try:
            instant = datetime.fromisoformat(self.event(delivery).timestamp)
        except msgspec.MsgspecError as error:
            raise ValueError("the delivery holds no event") from error
        if instant.tzinfo is None:
            raise ValueError(f"{instant} has no zone")
        return instant

    def batches(
        self, max_messages: int, linger_s: float, preview: Callable[[Sequence[Delivery]], None] | None = None
    ) -> BatchOptions:
        """How a seat's inbox is batched: whole conversations, the one that has waited longest first."""
        return BatchOptions(
            max_messages=max_messages,
            linger_s=linger_s,
            partition_key=self.conversation_of,
            dated=self.dated,
            preview=preview,
        )
