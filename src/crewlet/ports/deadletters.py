"""Dead letters: mail that used up its deliveries, kept with its history until somebody replays or drops it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from crewlet.ports.mail import Delivery, Subscription


@dataclass(frozen=True, slots=True)
class Handling:
    """One delivery in the history of a message.

    Attributes:
        number: which delivery, from 1.
        owner: the process incarnation that had it.
        at: that process's wall clock when it took it; of a first delivery, when it gave it back.
        reason: why it came back; "" where its reader never said, as one that died with it.
    """

    number: int
    owner: str
    at: datetime
    reason: str = ""


class DeliveryJournal(Protocol):
    """Notes who had a message and why it came back. Nothing here raises, and nothing takes longer than a second."""

    async def taken(self, subscription: Subscription, delivery: Delivery) -> None:
        """This process is about to work a delivery."""
        ...

    async def returned(self, subscription: Subscription, delivery: Delivery, reason: str) -> None:
        """This process hands a delivery back for a reason."""
        ...

    async def history(self, subscription: Subscription, sequence: int, published_at: datetime) -> Sequence[Handling]:
        """What is noted of a message, oldest first; nothing where that cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter.

    Attributes:
        id: names it: its place among the dead letters, a dash, and a mark by which a place given out twice shows.
        subscription: where it fell out.
        message_id: the id its publisher gave.
        data, headers: the message as it was published.
        sequence: the message's place in the stream that it was in.
        deliveries: how often it was handed over.
        reason: why it came back the last time.
        published_at, buried_at: the store's clock at the publish and at the burial.
        history: the deliveries that were noted, oldest first. The first one is noted only where it came back with a
            reason, and notes fail open: a number may be missing.
    """

    id: str
    subscription: Subscription
    message_id: str
    data: bytes
    headers: dict[str, str]
    sequence: int
    deliveries: int
    reason: str
    published_at: datetime
    buried_at: datetime
    history: tuple[Handling, ...] = ()


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some dead letters, oldest first. `next` is the `after` of the following page, or None at the end."""

    letters: Sequence[DeadLetter]
    next: str | None


class DeadLetters(Protocol):
    """The dead letters of a company. They age out by themselves; until then only `remove` takes one away."""

    async def page(self, topic: str, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Up to `limit` letters (or fewer, where they are large) of the topics that match, oldest first.

        Args:
            topic: a topic or a pattern; `>` is every one.
            after: the id of a letter: only what was buried later.

        Raises:
            Misuse: not a pattern, or not a letter's id.
            Unavailable: nobody answered.
        """
        ...

    async def get(self, letter_id: str) -> DeadLetter | None:
        """One letter, or None when there is none of this id.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    async def latest(self, subscription: Subscription, message_id: str) -> DeadLetter | None:
        """The newest letter of a message, or None.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    async def remove(self, letter_id: str) -> bool:
        """Delete a letter for good. False when there was none.

        Raises:
            Unavailable: unknown; a repeat does no harm.
        """
        ...
