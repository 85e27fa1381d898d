"""The mailboxes of a company: made by every node for every seat, before anybody can write to one.

A message published where no subscription exists is gone, and the node that will serve a seat may not be this one, so
a mailbox is a fact of the company and not of a node's share. Each is registered first, so that it can still be found
once its seat has left. A registry that does not answer stops no mailbox from being made.
"""

import asyncio
from collections.abc import Iterable
from typing import assert_never

import structlog

from crewlet.mail import topics
from crewlet.mail.registry import MailboxRecord, MailboxRegistry, Register
from crewlet.mail.retirement import may_take_over
from crewlet.ports.cells import Done, Refused, Unknown
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Mail, Subscription

_log = structlog.get_logger()

_SIDE_BY_SIDE = 32
_ROUNDS = 16


class _Unregistered(Unavailable):
    """A seat has no record, as far as is known."""


class Mailboxes:
    """Makes mailboxes. What is in the way of a try that came to nothing is told once it has been so for some time.

    Args:
        registry: None where none could be had: mailboxes are made all the same.
    """

    def __init__(
        self, mail: Mail, clock: Clock, *, alarm_after_s: float, registry: MailboxRegistry | None = None
    ) -> None:
        self._mail = mail
        self._clock = clock
        self._alarm_after_s = alarm_after_s
        self._registry = registry

    async def ensure(self, handles: Iterable[str]) -> int:
        """Register and make what is missing of these seats' mailboxes; returns how many subscriptions were made.

        Raises:
            Unavailable: some could not be made, or are being retired at this moment; all the others were tried. A
                further call makes the rest.
        """
        handles = list(dict.fromkeys(handles))
        unread: dict[str, str] = {}
        register = await self._register_now(unread)
        present = await self._present(unread)
        gate = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def one(handle: str, missing: list[Subscription]) -> int:
            async with gate:
                return await self._make(handle, missing, register)

        work: list[tuple[str, list[Subscription]]] = []
        for handle in handles:
            missing = [subscription for subscription in topics.mailbox(handle) if subscription not in present]
            if missing or not _is_settled(handle, register):
                work.append((handle, missing))
        answers = await asyncio.gather(*(one(*each) for each in work), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, Unavailable):
                raise failure
        if failures:
            raise Unavailable(f"{len(failures)} of {len(handles)} mailboxes could not be made: {failures[0]}")
        for event, error in unread.items():
            _log.warning(event, error=error)
        return sum(answer for answer in answers if not isinstance(answer, BaseException))

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

    async def restore(self, handle: str) -> int:
        """Make what is missing of one mailbox, whatever its record says; returns how many subscriptions were made.

        Raises:
            Unavailable: nobody answered.
        """
        return sum([await self._mail.ensure_subscription(subscription) for subscription in topics.mailbox(handle)])

    async def _present(self, unread: dict[str, str]) -> frozenset[Subscription]:
        """What is there, as far as it can be listed: a listing spares one question a subscription, and nothing else.

        Args:
            unread: is told why not, by the event that says so.
        """
        try:
            return frozenset(await self._mail.list_subscriptions(topics.ALL_MAILBOXES))
        except Unavailable as error:
            unread["seat_mailboxes_unlisted"] = str(error)
            return frozenset()

    async def _register_now(self, unread: dict[str, str]) -> Register | None:
        """The registry's content, or None when it cannot be had. `unread`: as above."""
        if self._registry is None:
            return None
        try:
            return await self._registry.list()
        except Unavailable as error:
            unread["seat_mailbox_registry_unavailable"] = str(error)
            return None

    async def _make(self, handle: str, missing: list[Subscription], register: Register | None) -> int:
        """Register one seat, then make its mailbox.

        What the broker listed is old where the record tells of an absence: every subscription is asked for then.
        """
        if self._registry is None or register is None or _is_settled(handle, register):
            made = sum([await self._mail.ensure_subscription(subscription) for subscription in missing])
            if self._registry is not None and register is None:
                _log.warning("seat_mailbox_unregistered", seat=handle, error="the registry does not answer")
            return made
        doubt = await self._settle(handle, register.records.get(handle), self._registry)
        made = await self.restore(handle)
        if isinstance(doubt, _Unregistered):
            # The next sweep registers it; a seat without a mailbox would be worse.
            _log.warning("seat_mailbox_unregistered", seat=handle, error=str(doubt))
        elif doubt is not None:
            raise doubt
        return made

    async def _settle(self, handle: str, record: MailboxRecord | None, registry: MailboxRegistry) -> Unavailable | None:
        """Bring a seat's record to say that the seat is in the company.

        Returns:
            None, or why it may still say otherwise: the mailbox is made all the same, and, but for a seat without a
            record, all of it tried again.

        Raises:
            Unavailable: the mailbox is being retired, as far as is known. It is not made meanwhile.
        """
        try:
            for _ in range(_ROUNDS):
                if record is None:
                    result = await registry.create(handle)
                elif record.is_clean:
                    return None
                elif record.retiring_since is None or may_take_over(record, await registry.now()):
                    result = await registry.update(record.returned())
                else:
                    raise Unavailable(f"the mailbox of {handle} is being retired, and made anew after that")
                match result:
                    case Done():
                        _tell(handle, record)
                        return None
                    case Refused():
                        record = await registry.get(handle)
                    case Unknown(reason):
                        raise Unavailable(f"the mailbox record of {handle} is undecided: {reason}")
                    case _:
                        assert_never(result)
            raise Unavailable(f"the mailbox record of {handle} was overtaken {_ROUNDS} times")
        except Unavailable as error:
            if record is None:
                return _Unregistered(str(error))
            if record.retiring_since is not None:
                raise
            return error


def _is_settled(handle: str, register: Register | None) -> bool:
    """Whether nothing has to be written for a seat. Nothing is written over a record that cannot be read."""
    if register is None or handle in register.unreadable:
        return True
    record = register.records.get(handle)
    return record is not None and record.is_clean


def _tell(handle: str, before: MailboxRecord | None) -> None:
    if before is None:
        return
    if before.retiring_since is not None:
        _log.warning(
            "seat_mailbox_retirement_taken_over",
            seat=handle,
            retiring_by=before.retiring_by,
            messages_counted=sum(before.messages.values()),
        )
    else:
        _log.info("seat_mailbox_returned", seat=handle, absent_since=str(before.absent_since))
