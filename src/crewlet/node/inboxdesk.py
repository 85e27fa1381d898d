"""What a sender and an operator can see of a seat's mail."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from crewlet.company.model import Company
from crewlet.kit import wording
from crewlet.mail import topics
from crewlet.mail.ledger import Completion, Ledger
from crewlet.mail.outbox import UnknownSeat, decode
from crewlet.mail.registry import MailboxRegistry
from crewlet.mail.retired import Retirements
from crewlet.mail.reuse import text_digest
from crewlet.mail.screening import AGENT_NOT_READY, BUDGET_WINDOW, SEAT_PAUSED, hold_reason
from crewlet.node.mailstatus import SeatMail
from crewlet.node.seatwork import SeatWork
from crewlet.node.status import FleetSnapshot, MailOutcome, PauseSnapshot
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeliveryJournal
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Backlog, Mail
from crewlet.turns.budget import Over


@dataclass(frozen=True, slots=True)
class Trace:
    """What became of a mail, and the digest of its text (see `reuse`); "" where that is not known."""

    outcome: MailOutcome
    digest: str = ""


_NO_MAILBOX = "it has no mailbox; `crewlet duty run maintenance` makes it"
_UNHELD = "no node holds it; one takes it at its next pass, or when the lease of a node that is gone has lapsed"
_NOBODY = "no node of the fleet is live; `crewlet status` says what is wrong"


@dataclass(frozen=True, slots=True)
class InboxDesk:
    """The verbs.

    Attributes:
        mail, ledger, journal: what they read.
        company: the document in force.
        fleet: reads who holds what.
        over: reads the cap that keeps a seat from spending, or None.
        registry, retirements: what is known of the mailboxes of seats that left.
        grace_s: how long their mail is kept.
        work: asks the node that holds a seat what it does with it; None where that does not say.
        node_id: this node.
    """

    mail: Mail
    ledger: Ledger
    journal: DeliveryJournal
    company: Callable[[], Company]
    fleet: Callable[[], Awaitable[FleetSnapshot]]
    over: Callable[[str], Awaitable[Over | None]]
    work: Callable[[str, str], Awaitable[SeatWork | None]]
    node_id: str
    clock: Clock
    registry: MailboxRegistry
    retirements: Retirements
    grace_s: float

    async def outcome(self, handle: str, message_id: str) -> MailOutcome:
        """What became of a mail.

        Raises:
            UnknownSeat, Unavailable: see `trace`.
        """
        return (await self.trace(handle, message_id)).outcome

    async def trace(self, handle: str, message_id: str) -> Trace:
        """What is known of a mail. It is looked for in the order in which mail moves, so that none slips past.

        Raises:
            UnknownSeat: the company has no such seat.
            Unavailable: the ledger or the broker did not answer: unknown is not no.
        """
        self._require(handle)
        inbox = topics.inbox(handle)
        if completion := await self.ledger.completion(handle, message_id):
            return _finished(handle, message_id, completion)
        kept = await self.mail.find(inbox, message_id)
        if kept is not None:
            history = await self.journal.history(inbox, kept.sequence, kept.published_at)
            tries = max((each.number for each in history), default=None)
            reason = next((each.reason for each in reversed(history) if each.reason), "")
            opened = MailOutcome(message_id, handle, "open", detail=reason, deliveries=tries)
            return Trace(opened, _digest_in(kept.data))
        letter = await self.mail.dead_letters.latest(inbox, message_id)
        if completion := await self.ledger.completion(handle, message_id):
            return _finished(handle, message_id, completion)
        if letter is None:
            return Trace(MailOutcome(message_id, handle, "unknown"))
        buried = MailOutcome(
            message_id,
            handle,
            "dead_lettered",
            detail=letter.reason,
            recorded_at=letter.buried_at,
            deliveries=letter.deliveries,
            dead_letter=letter.id,
        )
        return Trace(buried, _digest_in(letter.data))

    async def earlier(self, handle: str, message_id: str) -> Trace | None:
        """What became of a mail that is finished or has a dead letter; None where there is neither.

        Raises:
            UnknownSeat, Unavailable: see `trace`. What only the ledger does not tell is None: its seat asks again.
        """
        self._require(handle)
        completion, letter = await asyncio.gather(
            self._completion(handle, message_id), self.mail.dead_letters.latest(topics.inbox(handle), message_id)
        )
        if completion is not None:
            return _finished(handle, message_id, completion)
        if letter is None:
            return None
        trace = await self.trace(handle, message_id)
        return trace if trace.outcome.state != "unknown" else None

    async def _completion(self, handle: str, message_id: str) -> Completion | None:
        try:
            return await self.ledger.completion(handle, message_id)
        except Unavailable:
            return None

    async def inbox(self, handle: str) -> SeatMail:
        """What lies in a seat's inbox, and what keeps it from being read; also of a seat that left, while it is known.

        Raises:
            UnknownSeat: the company has no such seat, and none is remembered.
            Unavailable: the broker or the lease store did not answer.
        """
        shown = await (self._of_removed(handle) if self.company().seat(handle) is None else self._of_seat(handle))
        retired = await self.retirements.last(handle)
        if retired is None:
            return shown
        return replace(shown, retired_at=retired.at, retired_messages=retired.total)

    async def _of_removed(self, handle: str) -> SeatMail:
        record = await self.registry.get(handle) if topics.is_handle(handle) else None
        if record is None:
            if not topics.is_handle(handle) or await self.retirements.last(handle) is None:
                raise UnknownSeat(handle, self.company())
            return SeatMail(handle, 0, 0, held="the seat has left the company, and its mailbox is deleted")
        inbox = topics.inbox(handle)
        backlog = await self.mail.waiting(inbox) or Backlog(0, 0, 0)
        oldest_at = await self.mail.oldest_at(inbox) if backlog.waiting or backlog.in_hand else None
        left_at = record.absent_since
        shown = SeatMail(
            handle,
            backlog.waiting,
            backlog.in_hand,
            held="the seat has left the company",
            left_at=left_at,
            deleted_from=left_at + timedelta(seconds=self.grace_s) if left_at is not None else None,
        )
        return shown if oldest_at is None else self._dated(shown, oldest_at)

    async def _of_seat(self, handle: str) -> SeatMail:
        inbox = topics.inbox(handle)
        backlog = await self.mail.waiting(inbox)
        fleet, over = await asyncio.gather(self.fleet(), self._over(handle))
        node = next((seat.node for seat in fleet.seats if seat.handle == handle), None)
        work = await self.work(handle, node) if node is not None else None
        if backlog is None:
            return self._shown(handle, Backlog(0, 0, 0), fleet, over, work, held=_NO_MAILBOX)
        oldest_at = await self.mail.oldest_at(inbox) if backlog.waiting or backlog.in_hand else None
        paused = "its consumer is paused on the broker (`nats consumer resume`)" if backlog.is_paused else ""
        shown = self._shown(handle, backlog, fleet, over, work, held=paused)
        return shown if oldest_at is None else self._dated(shown, oldest_at)

    def _dated(self, shown: SeatMail, oldest_at: datetime) -> SeatMail:
        age_s = max(0.0, (self.clock.now() - oldest_at).total_seconds())
        return replace(shown, oldest_at=oldest_at, oldest_age_s=round(age_s, 3))

    async def _over(self, handle: str) -> Over | None:
        try:
            return await self.over(handle)
        except Unavailable:
            return None  # what cannot be read is not told as a reason

    def _shown(
        self,
        handle: str,
        backlog: Backlog,
        fleet: FleetSnapshot,
        over: Over | None,
        work: SeatWork | None,
        *,
        held: str = "",
    ) -> SeatMail:
        seat = next((seat for seat in fleet.seats if seat.handle == handle), None)
        node = seat.node if seat is not None else None
        placement = next((each.placement for each in fleet.unplaceable if each.handle == handle), None)
        by_holder = work.held if work is not None else ""
        if not held and node is None:
            unheld = _UNHELD if fleet.nodes else _NOBODY
            held = f"no live node may run it ({placement})" if placement is not None else unheld
            if seat is not None and seat.free_since is not None:
                held += f" (free since {wording.instant(seat.free_since)})"
        pause = seat.pause if seat is not None else None
        has_mail = bool(backlog.waiting or backlog.in_hand)
        why = _why(handle, pause, over, work, has_mail=has_mail) or (f"{handle}: {held}" if held else "")
        fleetwide = ", ".join(
            word for word, holds in ((SEAT_PAUSED, pause is not None), (BUDGET_WINDOW, over is not None)) if holds
        )
        is_ready = AGENT_NOT_READY not in by_holder.split(", ")
        held = held or by_holder or fleetwide
        return SeatMail(
            handle,
            backlog.waiting,
            backlog.in_hand,
            node=node,
            held=held,
            why=why,
            is_held_known=work is not None or bool(held),
            last_error=work.trouble if work is not None and is_ready else "",
        )

    def _require(self, handle: str) -> None:
        company = self.company()
        if company.seat(handle) is None:
            raise UnknownSeat(handle, company)


def _finished(handle: str, message_id: str, completion: Completion) -> Trace:
    finished = MailOutcome(
        message_id,
        handle,
        "finished",
        outcome=completion.outcome,
        detail=completion.detail,
        turn_id=completion.turn_id,
        recorded_at=completion.recorded_at,
    )
    return Trace(finished, completion.digest)


def _digest_in(data: bytes) -> str:
    try:
        return text_digest(decode(data))
    except msgspec.MsgspecError:
        return ""


def _why(handle: str, pause: PauseSnapshot | None, over: Over | None, work: SeatWork | None, *, has_mail: bool) -> str:
    """Why a seat's mail waits, and what changes that; "" where nothing is known to keep it."""
    if pause is not None:
        reason = f" ({pause.reason})" if pause.reason else ""
        until = f", until {wording.instant(pause.until)}" if pause.until is not None else ""
        lifted = f"`crewlet seat resume {handle}` lets it take mail again"
        return f"{handle} was paused by {pause.by or 'a person'}{reason}{until}; {lifted}"
    if over is not None:
        return f"{over}, so that {handle} is held back until {over.until.isoformat(timespec='seconds')}"
    if work is None:
        return ""
    holds = work.held.split(", ")
    if AGENT_NOT_READY in holds:
        return f"{handle} is not ready: {work.trouble or 'its agent is being started'}"
    if work.held:
        return f"{handle} takes no mail now: {hold_reason(holds[0]) or holds[0]}"
    if has_mail and work.turn_id and work.turn_began_at is not None:
        at_work = f"{handle} has been at work since {wording.instant(work.turn_began_at)}"
        if work.waiting:
            at_work += f" and is {work.waiting.rstrip('.')}"
        return f"{at_work}; `crewlet turn show {work.turn_id}` on {work.node} shows at what"
    return ""
