"""What the readers of one subscription note of mail that comes back, and what they read in it.

Where mail is delivered for the first time nothing is noted, so that it costs nothing. The notes fail open: what they do
not tell counts as unsaid.
"""

import asyncio
from collections.abc import Sequence

from crewlet.mail.batching import may_kill
from crewlet.ports.deadletters import DeliveryJournal, Handling
from crewlet.ports.mail import Delivery, Subscription


class ReaderNotes:
    """The journal of one subscription. Without one nothing is noted, and nothing is known."""

    def __init__(self, subscription: Subscription, journal: DeliveryJournal | None) -> None:
        self._subscription = subscription
        self._journal = journal

    async def taken(self, again: Sequence[Delivery]) -> None:
        """Deliveries that are no first ones are being handled."""
        if self._journal is not None:
            await asyncio.gather(*(self._journal.taken(self._subscription, each) for each in again))

    async def returned(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """They go back, and why."""
        if self._journal is not None and deliveries:
            await asyncio.gather(*(self._journal.returned(self._subscription, each, reason) for each in deliveries))

    async def history(self, delivery: Delivery) -> Sequence[Handling]:
        """What is known of the readers before."""
        if self._journal is None:
            return ()
        return await self._journal.history(self._subscription, delivery.sequence, delivery.published_at)

    async def may_kill(self, delivery: Delivery) -> bool:
        """Whether, by what is known, it may have killed its readers."""
        return self._journal is not None and may_kill(delivery, last_word(await self.history(delivery), delivery))


def last_word(history: Sequence[Handling], delivery: Delivery) -> str:
    """What the reader of the delivery before this one said; "" where it said nothing."""
    last = history[-1] if history else None
    return last.reason if last is not None and last.number == delivery.deliveries - 1 else ""
