"""How deliveries that were taken together become the partitions a handler sees. Pure; every mail adapter shares it.

Decides order, grouping, clamping and back-off. Leaves fetching and settling to whoever drives it.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from crewlet.ports.mail import BatchOptions, Delivery

MAX_BATCH_MESSAGES = 100
MAX_LINGER_S = 60.0
NAK_FIRST_S = 1.0
NAK_CAP_S = 30.0
UNEXPLAINED_DELIVERIES = 2
"""How often mail may have come back without a word from its readers: a first hand-over is not noted either."""

Partition = tuple[Delivery, ...]


def clamped(options: BatchOptions | None) -> BatchOptions:
    """The options with `max_messages` in 1 to 100 and `linger_s` in 0 to 60; None is one delivery at a time."""
    if options is None:
        return BatchOptions()
    linger = options.linger_s if math.isfinite(options.linger_s) else 0.0
    return BatchOptions(
        max_messages=min(max(1, options.max_messages), MAX_BATCH_MESSAGES),
        linger_s=min(max(0.0, linger), MAX_LINGER_S),
        partition_key=options.partition_key,
        dated=options.dated,
        preview=options.preview,
    )


def partitions(deliveries: Sequence[Delivery], options: BatchOptions, alone: Collection[int] = ()) -> list[Partition]:
    """Group deliveries by conversation, the conversation that has waited longest first.

    Args:
        deliveries: in order of arrival.
        alone: the sequences of those that are worked alone.

    Returns:
        Every delivery exactly once. Inside a partition and between partitions the older instant comes first; equal
        instants keep the order of arrival, and what has no usable instant stays behind what arrived just before it.
        A delivery that is worked alone is a partition of its own, in its place.
    """
    instants = _instants(deliveries, options)
    groups: dict[object, list[int]] = {}
    for index, delivery in enumerate(deliveries):
        groups.setdefault(_key(index, delivery, options), []).append(index)
    # Each as its first instant, where it stood at its arrival, and its own order. Most conversations are one message.
    ordered: list[tuple[float, int, list[int]]] = []
    for indexes in groups.values():
        arrived = indexes[0]
        if len(indexes) > 1:
            indexes.sort(key=lambda index: (instants[index], index))
        ordered.append((instants[indexes[0]], arrived, indexes))
    ordered.sort()
    if not alone:
        return [tuple([deliveries[index] for index in indexes]) for _, _, indexes in ordered]
    return [part for _, _, indexes in ordered for part in _parts([deliveries[index] for index in indexes], alone)]


def is_worn(delivery: Delivery) -> bool:
    """Whether mail has used up more than half of its budget. It is worked alone from then on: what keeps failing takes
    nothing of its conversation to the dead letters, and what fails beside it still has deliveries of its own."""
    return delivery.deliveries > max(1, delivery.deliveries_left)


def may_kill(delivery: Delivery, last_word: str) -> bool:
    """Whether mail may have killed its readers: it has come back more than once, and the last one went without a word.

    It is worked with nothing else in hand, as whatever is in a dead reader's hand has lost a delivery too.

    Args:
        last_word: why that reader gave it back; "" where it did not say.
    """
    return delivery.deliveries > UNEXPLAINED_DELIVERIES and not last_word


def nak_delay_s(deliveries: int) -> float:
    """How long a failed delivery stays away: 1 s after the first, doubling to 30 s."""
    return min(NAK_CAP_S, NAK_FIRST_S * 2.0 ** min(max(0, deliveries - 1), 10))


def headroom(partition: Iterable[Delivery]) -> int:
    """How often a partition may still come back whole: the least of its deliveries' own counts, 0 for none."""
    return min((delivery.deliveries_left for delivery in partition), default=0)


def in_stream_order(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """The order in which deliveries are handed back, so that they lie in the inbox as they did before."""
    return sorted(deliveries, key=lambda delivery: delivery.sequence)


def _parts(group: Sequence[Delivery], alone: Collection[int]) -> list[Partition]:
    parts: list[list[Delivery]] = []
    was_alone = True
    for delivery in group:
        is_alone = delivery.sequence in alone
        if is_alone or was_alone:
            parts.append([])
        parts[-1].append(delivery)
        was_alone = is_alone
    return [tuple(part) for part in parts]


def _key(index: int, delivery: Delivery, options: BatchOptions) -> object:
    if options.partition_key is None:
        return index
    try:
        return options.partition_key(delivery)
    except Exception:  # noqa: BLE001 - the key function is the caller's; the promise is a partition of its own
        return index


def _instants(deliveries: Sequence[Delivery], options: BatchOptions) -> list[float]:
    """A sortable instant for each delivery; one without inherits its forerunner's, so that order stays total."""
    instants: list[float] = []
    previous = -math.inf
    for delivery in deliveries:
        instant = _instant(delivery, options)
        previous = previous if instant is None else instant
        instants.append(previous)
    return instants


def _instant(delivery: Delivery, options: BatchOptions) -> float | None:
    if options.dated is None:
        return None
    try:
        dated: datetime = options.dated(delivery)
        return dated.timestamp() if dated.tzinfo is not None else None
    except Exception:  # noqa: BLE001 - likewise: an event that cannot be dated keeps its place
        return None
