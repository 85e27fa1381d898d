"""The mailboxes of a company: made by every node for every seat, before anybody can write to one.

A message published where no subscription exists is gone, and the node that will serve a seat may not be this one, so
a mailbox is a fact of the company and not of a node's share.
"""

import asyncio
from collections.abc import Iterable

import structlog

from crewlet.mail import topics
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Mail, Subscription

_log = structlog.get_logger()

_SIDE_BY_SIDE = 32


class Mailboxes:
    """Makes mailboxes, and says so when it cannot."""

    def __init__(self, mail: Mail, clock: Clock, *, alarm_after_s: float) -> None:
        self._mail = mail
        self._clock = clock
        self._alarm_after_s = alarm_after_s

    async def ensure(self, handles: Iterable[str]) -> int:
        """Make what is missing of these seats' mailboxes; returns how many subscriptions were made.

        Raises:
            Unavailable: some could not be made; all the others were tried. A further call makes the rest.
        """
        wanted = [subscription for handle in handles for subscription in topics.mailbox(handle)]
        present = set(await self._mail.list_subscriptions(topics.ALL_MAILBOXES))
        missing = [subscription for subscription in wanted if subscription not in present]
        gate = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def one(subscription: Subscription) -> bool:
            async with gate:
                return await self._mail.ensure_subscription(subscription)

        answers = await asyncio.gather(*(one(each) for each in missing), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, Unavailable):
                raise failure
        if failures:
            raise Unavailable(f"{len(failures)} of {len(missing)} mailboxes could not be made: {failures[0]}")
        return sum(answer is True for answer in answers)

    async def ensure_until_made(self, handles: Iterable[str]) -> int:
        """Keep trying until every mailbox is there. One alarm once it has failed for a lease TTL, then one a TTL."""
        handles = list(handles)
        alarm_at = self._clock.elapsed() + self._alarm_after_s
        pause_s = 0.5
        while True:
            try:
                return await self.ensure(handles)
            except Unavailable as error:
                if self._clock.elapsed() >= alarm_at:
                    _log.error("seat_mailboxes_not_made", seats=len(handles), error=str(error))
                    alarm_at = self._clock.elapsed() + self._alarm_after_s
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
