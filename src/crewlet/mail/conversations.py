"""Which deliveries of an inbox belong together, and in which order."""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from crewlet.kit.decoding import decode
from crewlet.ports.mail import BatchOptions, Delivery


class _Head(msgspec.Struct, frozen=True, gc=False):
    """What of an event puts it in its place."""

    id: str
    timestamp: str
    conversation: str = ""


def conversation_of(delivery: Delivery) -> str:
    """The partition key of a delivery: its event's conversation, else one that nothing else shares.

    Raises:
        msgspec.MsgspecError: it holds no event; the delivery is then a partition of its own.
    """
    head = decode(delivery.data, _Head)
    return f"conversation:{head.conversation}" if head.conversation else f"event:{head.id}"


def dated(delivery: Delivery) -> datetime:
    """When a delivery's event happened, by its own word.

    Raises:
        ValueError: the event carries no usable instant; the order of arrival then stands.
    """
    try:
        instant = datetime.fromisoformat(decode(delivery.data, _Head).timestamp)
    except msgspec.MsgspecError as error:
        raise ValueError("the delivery holds no event") from error
    if instant.tzinfo is None:
        raise ValueError(f"{instant} has no zone")
    return instant


def inbox_batches(
    max_messages: int, linger_s: float, preview: Callable[[Sequence[Delivery]], None] | None = None
) -> BatchOptions:
    """How a seat's inbox is batched: whole conversations, the one that has waited longest first."""
    return BatchOptions(
        max_messages=max_messages, linger_s=linger_s, partition_key=conversation_of, dated=dated, preview=preview
    )
