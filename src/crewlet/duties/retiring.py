"""One sweep over the company's mailboxes: notices the seats that left, and retires their mailboxes after the grace.

What is right for one seat is decided in `crewlet.mail.retirement`; here it is read, done under the seat's own lease,
and put right where somebody else was quicker. Unknown is never absent: a roster, registry or lease store that cannot be
read ends the sweep before it has written anything.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

import structlog

from crewlet.duties.asking import Asking
from crewlet.duties.deletion import Deletion
from crewlet.kit import wording
from crewlet.kit.supervise import Tasks
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.mail.registry import MailboxRecord, MailboxRegistry
from crewlet.mail.retired import Retirements
from crewlet.mail.retirement import Verdict, budget_s, verdict, was_taken_over
from crewlet.ports.cells import Done, Refused, Unknown, WriteResult, landed
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import CrewletError, Fenced, Unavailable
from crewlet.ports.mail import Mail, Subscription
from crewlet.seats.lease import SEAT, ClaimRefused, seat_resource
from crewlet.seats.leases import LeaseStore

Roster = Callable[[], Awaitable[frozenset[str] | None]]
"""The handles of the company's seats in the revision that the whole fleet has; None where there is no revision yet.

Raises Unavailable: it is not known, or this node or a peer is behind it."""

_NAMED = 10
"""So many of the mailboxes whose mail was deleted are named in the line about a sweep; the log names each."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Report:
    """What one sweep did, in handles, and what it could not do."""

    stamped: list[str] = field(default_factory=list[str])
    returned: list[str] = field(default_factory=list[str])
    registered: list[str] = field(default_factory=list[str])
    restored: list[str] = field(default_factory=list[str])
    held: list[str] = field(default_factory=list[str])
    retired: list[str] = field(default_factory=list[str])
    deleted: dict[str, int] = field(default_factory=dict[str, int])
    """How many messages went with each mailbox that was retired."""
    errors: list[str] = field(default_factory=list[str])

    def line(self) -> str:
        """What was done, in one line; "" where nothing was."""
        kinds = ("retired", "stamped", "returned", "registered", "restored", "held")
        counts = {kind: len(getattr(self, kind)) for kind in kinds}
        said = [f"{wording.counted(count, 'mailbox', 'mailboxes')} {kind}" for kind, count in counts.items() if count]
        if self.deleted:
            lost = {handle: count for handle, count in sorted(self.deleted.items()) if count}
            named = ", ".join(f"{handle} {count}" for handle, count in list(lost.items())[:_NAMED])
            more = ", …" if len(lost) > _NAMED else ""
            messages = wording.counted(sum(lost.values()), "message")
            said.insert(1, f"with {messages}" + (f" ({named}{more})" if named else ""))
        return ", ".join(said)


class MailboxSweep:
    """Sweeps, one at a time.

    Args:
        retirements: where it is put down how much mail went with a mailbox.
        leases: the seats'.
        node_id: whose name the lease of a seat carries while its mailbox is retired.
        grace_s: how long a removed seat's mail is kept.
    """

    def __init__(
        self,
        registry: MailboxRegistry,
        mailboxes: Mailboxes,
        mail: Mail,
        retirements: Retirements,
        leases: LeaseStore,
        roster: Roster,
        *,
        node_id: str,
        clock: Clock,
        entropy: Entropy,
        grace_s: float,
    ) -> None:
        self._registry = registry
        self._mailboxes = mailboxes
        self._mail = mail
        self._retirements = retirements
        self._leases = leases
        self._roster = roster
        self._node_id = node_id
        self._clock = clock
        self._entropy = entropy
        self._grace_s = grace_s
        self._turned = _nothing
        self._tasks = Tasks("mailbox sweep")
        self._ask = Asking(leases.ttl_s, clock, self._tasks)

    async def sweep(self, turned: Callable[[], None] | None = None) -> Report:
        """Judge every seat once. One that fails does not keep the others.

        Args:
            turned: called as it gets on.

        Raises:
            Unavailable: what a sweep judges by cannot be read. Nothing was written.
        """
        self._turned = self._ask.turned = turned or _nothing
        # A seat is registered before its mailbox is made, so what is listed first has a record by now if it has one.
        listed = await self._listed()
        register = await self._registry.list()
        self._turned()
        await self._leases.list_live(SEAT)
        self._turned()
        roster = await self._roster()
        self._turned()
        report = Report()
        if roster is None:
            return report
        now = await self._registry.now()
        known = {*register.records, *roster, *(listed or ())} - register.unreadable
        for handle in sorted(known):
            self._turned()
            record = register.records.get(handle)
            is_whole = listed is None or len(listed.get(handle, ())) == len(topics.mailbox(handle))
            decision = verdict(
                record, is_in_company=handle in roster, is_whole=is_whole, now=now, grace_s=self._grace_s
            )
            try:
                await self._act(decision, handle, record, report)
            except CrewletError as error:
                _log.warning("seat_mailbox_sweep_failed", seat=handle, doing=decision.name.lower(), error=str(error))
                report.errors.append(f"{handle}: {error}")
        return report

    async def _listed(self) -> Mapping[str, Sequence[Subscription]] | None:
        """The mailboxes that the broker holds, by handle; None when it does not say, and discovery waits."""
        try:
            subscriptions = await self._ask(
                self._mail.list_subscriptions(topics.ALL_MAILBOXES), "the list of mailboxes"
            )
        except Unavailable as error:
            _log.warning("seat_mailbox_discovery_failed", error=str(error))
            return None
        found: dict[str, list[Subscription]] = {}
        for subscription in subscriptions:
            if (handle := topics.seat_of(subscription)) is not None:
                found.setdefault(handle, []).append(subscription)
        return found

    async def _act(self, decision: Verdict, handle: str, record: MailboxRecord | None, report: Report) -> None:
        match decision, record:
            case Verdict.LEAVE, _:
                pass
            case Verdict.REGISTER, _:
                if _is_done(await self._registry.create(handle)):
                    report.registered.append(handle)
            case Verdict.DISCOVER, _:
                await self._discover(handle, report)
            case Verdict.RESTORE, _:
                if await self._ask(self._mailboxes.restore(handle), f"making the mailbox of {handle}"):
                    _log.warning("seat_mailbox_restored", seat=handle)
                    report.restored.append(handle)
            case Verdict.STAMP, MailboxRecord():
                await self._stamp(record, report)
            case ((Verdict.RETURN | Verdict.RECOVER), MailboxRecord()):
                await self._take_back(record, report)
            case ((Verdict.RETIRE | Verdict.RESUME), MailboxRecord()):
                await self._retire(record, report)
            case _:
                raise AssertionError(f"{decision} without a record")

    async def _discover(self, handle: str, report: Report) -> None:
        now = await self._registry.now()
        self._turned()
        if _is_done(await self._registry.create(handle, absent_since=now)):
            _log.warning("seat_mailbox_discovered", seat=handle)
            self._tell_absent(handle, now, report)

    async def _stamp(self, record: MailboxRecord, report: Report) -> None:
        now = await self._registry.now()
        self._turned()
        if _is_done(await self._registry.update(record.absent(now))):
            self._tell_absent(record.handle, now, report)

    def _tell_absent(self, handle: str, now: datetime, report: Report) -> None:
        retires_at = now + timedelta(seconds=self._grace_s)
        _log.info("seat_mailbox_absent", seat=handle, retires_at=retires_at.isoformat(timespec="seconds"))
        report.stamped.append(handle)

    async def _take_back(self, record: MailboxRecord, report: Report) -> None:
        """The seat is in the company again. What a retirement that died had deleted already is made again."""
        if _is_done(await self._registry.update(record.returned())):
            _log.info(
                "seat_mailbox_returned",
                seat=record.handle,
                absent_since=str(record.absent_since),
                messages_counted=sum(record.messages.values()),
            )
            report.returned.append(record.handle)
            if record.retiring_since is not None:
                self._turned()
                await self._ask(self._mailboxes.restore(record.handle), f"making the mailbox of {record.handle}")

    async def _retire(self, record: MailboxRecord, report: Report) -> None:
        """Retire under the seat's own lease: the one thing that every node which would attach asks for."""
        handle = record.handle
        owner = f"{self._node_id}:retire-{self._entropy.token(4)}"
        ends_at = self._clock.elapsed() + budget_s(self._leases.ttl_s)
        claim = await self._leases.claim(seat_resource(handle), owner, gated=True)
        self._turned()
        if isinstance(claim, ClaimRefused):
            _log.info("seat_mailbox_retirement_held", seat=handle, refused=claim.reason, holder=claim.holder)
            report.held.append(handle)
            return
        deletion = Deletion(self._mail, handle, ends_at, self._clock, self._tasks)
        try:
            await self._retire_held(record, owner, deletion, report)
        finally:
            self._turned()
            if deletion.may_land:
                # The lease keeps every node out for as long as it lives, and the mark whoever would make the mailbox.
                _log.warning("seat_mailbox_retirement_undecided", seat=handle, owner=owner)
            else:
                await self._release(handle, owner, claim.lease.epoch)

    async def _retire_held(self, record: MailboxRecord, owner: str, deletion: Deletion, report: Report) -> None:
        handle = record.handle
        roster = await self._roster()
        if roster is None or handle in roster:
            return
        self._turned()
        messages = await self._count(record)
        marked = record.marked(await self._registry.now(), owner, messages)
        self._turned()
        match await self._registry.update(marked):
            case Done(version):
                marked = replace(marked, version=version)
            case Refused():
                _log.info("seat_mailbox_retirement_overtaken", seat=handle)
                return
            case Unknown(reason):
                raise Unavailable(f"the mark is undecided: {reason}")
            case _ as never:
                assert_never(never)
        if record.retiring_since is not None:
            _log.warning("seat_mailbox_retirement_resumed", seat=handle, left_by=record.retiring_by)
        self._turned()
        try:
            await deletion.run(self._turned)
        except (Unavailable, Fenced, TimeoutError) as error:
            self._turned()
            if deletion.may_land:
                await self._put_back_if_taken_over(handle)
                raise Unavailable(
                    f"whether its mailbox is deleted is not known, and is looked at later: {error}"
                ) from error
            await self._settle(await self._registry.update(marked.unmarked()), handle)
            raise Unavailable(f"the mailbox could not be deleted, and is tried again: {error}") from error
        total = sum(messages.values())
        try:
            note = self._retirements.note(handle, owner, record.absent_since, messages)
            await self._ask(note, f"noting the retirement of {handle}")
        except Unavailable:
            _log.warning("seat_mailbox_retirement_unrecorded", seat=handle, messages=total)
            raise
        if await self._settle(await self._registry.delete(marked), handle):
            _log.info("seat_mailbox_retired", seat=handle, absent_since=str(record.absent_since), messages=total)
            report.retired.append(handle)
            report.deleted[handle] = total
        else:
            _log.warning("seat_mailbox_retirement_overtaken", seat=handle, messages=total)

    async def _count(self, record: MailboxRecord) -> dict[str, int]:
        """How many messages each part of a mailbox holds; of a part that is gone, what was counted before it went.

        Nobody writes there any more: the roster is agreed on, and a seat that no document names is sent nothing.

        Raises:
            Unavailable: nobody answered. Nothing is deleted uncounted.
        """
        messages: dict[str, int] = {}
        for subscription in topics.mailbox(record.handle):
            part = subscription.topic.rpartition(".")[2]
            backlog = await self._ask(self._mail.waiting(subscription), f"counting the mail of {subscription.topic}")
            messages[part] = backlog.waiting + backlog.in_hand if backlog else record.messages.get(part, 0)
        return messages

    async def _settle(self, result: WriteResult, handle: str) -> bool:
        """Whether the last write on a marked record is in. If somebody took the seat over, its mailbox is made again.

        Raises:
            Unavailable: nobody knows. A mark that stays is resumed by a later sweep.
        """
        match result:
            case Done():
                return True
            case Refused():
                await self._put_back_if_taken_over(handle)
                return False
            case Unknown(reason):
                raise Unavailable(f"the end of its retirement is undecided: {reason}")
            case _:
                assert_never(result)

    async def _put_back_if_taken_over(self, handle: str) -> None:
        self._turned()
        if was_taken_over(await self._registry.get(handle)):
            self._turned()
            made = await self._ask(self._mailboxes.restore(handle), f"making the mailbox of {handle}")
            _log.warning("seat_mailbox_restored", seat=handle, made=made)

    async def _release(self, handle: str, owner: str, epoch: int) -> None:
        try:
            await self._leases.release(seat_resource(handle), owner, epoch)
        except Unavailable as error:
            _log.warning("seat_lease_not_released", seat=handle, owner=owner, error=str(error))


def _nothing() -> None:
    return None


def _is_done(result: WriteResult) -> bool:
    """Whether a write is in; False where somebody else wrote first, and the next sweep judges anew.

    Raises:
        Unavailable: nobody knows.
    """
    return landed(result, "its record is undecided")
