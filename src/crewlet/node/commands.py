"""What can be asked of a node from outside: each verb answers the same on every node of the fleet."""

from dataclasses import dataclass

import msgspec

from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.mail.reuse import IdReused, text_digest
from crewlet.node.budgetdesk import BudgetDesk
from crewlet.node.duties import DutyDesk
from crewlet.node.historydesk import HistoryDesk
from crewlet.node.inboxdesk import InboxDesk, Trace
from crewlet.node.letterdesk import LetterDesk
from crewlet.node.limits import MAX_ID_CHARS, MAX_MAIL_BYTES
from crewlet.node.mailstatus import SeatMail
from crewlet.node.pausing import Pausing
from crewlet.node.scheduledesk import ScheduleDesk
from crewlet.node.status import MailOutcome, SentMail
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import MessageTooLarge


@dataclass(frozen=True, slots=True)
class Commands:
    """The verbs."""

    outbox: Outbox
    entropy: Entropy
    inboxes: InboxDesk
    letters: LetterDesk
    duties: DutyDesk
    pausing: Pausing
    history: HistoryDesk
    budgets: BudgetDesk
    schedules: ScheduleDesk

    async def send_mail(
        self,
        handle: str,
        body: str,
        *,
        subject: str = "",
        message_id: str | None = None,
        source: str = "person",
        conversation: str = "",
        chat_message: str = "",
    ) -> SentMail:
        """Put a mail into a seat's inbox. The same `message_id` within two minutes is the same mail, on any node.

        So it is for as long as the ledger says that a turn has finished it, and as its dead letter is kept: it is not
        sent anew, with another budget, but replayed or dropped. Between the two, a mail that still waits after two
        minutes is not looked for: what is sent then under its id is dropped when the first is finished.

        Raises:
            UnknownSeat: the company has no such seat.
            IdReused: an earlier mail of this id, of which the text is known, says something else.
            Misuse: an id that is empty or too long.
            NoMailbox, MessageTooLarge: refused; the id is not burnt.
            Unavailable: unknown, or the broker takes it for a mail of the last two minutes that is gone; a repeat with
                the same id is safe.
        """
        if message_id is not None and (not message_id.strip() or len(message_id) > MAX_ID_CHARS):
            raise Misuse(f"a message id has 1 to {MAX_ID_CHARS} characters")
        if (size := len(body.encode())) > MAX_MAIL_BYTES:
            raise MessageTooLarge(f"the mail has {size} bytes; {MAX_MAIL_BYTES} are allowed")
        envelope = Envelope(
            id=message_id or self.entropy.uuid(),
            type="external_notification",
            timestamp=self.outbox.timestamp(),
            source=source,
            to=handle,
            subject=subject,
            body=body,
            conversation=conversation,
            chat_message=chat_message,
        )
        if message_id is not None:
            envelope = msgspec.structs.replace(envelope, digest=text_digest(envelope))
            if (earlier := await self.inboxes.earlier(handle, message_id)) is not None:
                _refuse_another(envelope, earlier)
                return SentMail(message_id, is_duplicate=True, dead_letter=earlier.outcome.dead_letter)
        published = await self.outbox.post(envelope)
        if message_id is not None and published.is_duplicate:
            earlier = await self.inboxes.trace(handle, message_id)
            _refuse_lost(earlier)
            _refuse_another(envelope, earlier)
        return SentMail(envelope.id, published.is_duplicate)

    async def mail_outcome(self, handle: str, message_id: str) -> MailOutcome:
        """What became of a mail; see `InboxDesk.outcome`."""
        return await self.inboxes.outcome(handle, message_id)

    async def seat_mail(self, handle: str) -> SeatMail:
        """What lies in a seat's inbox; see `InboxDesk.inbox`."""
        return await self.inboxes.inbox(handle)


def _refuse_lost(earlier: Trace) -> None:
    """The broker knows an id for two minutes, also of a mail whose dead letter was dropped meanwhile."""
    if earlier.outcome.state == "unknown":
        raise Unavailable(
            f"nothing was sent: the broker takes {earlier.outcome.id!r} for a mail of the last two minutes, which is "
            "gone; send it again when they are over, or under another id"
        )


def _refuse_another(envelope: Envelope, earlier: Trace) -> None:
    if earlier.digest and earlier.digest != envelope.digest:
        raise IdReused(
            f"nothing was sent: a mail to {envelope.to} with the id {envelope.id!r} was sent before, with another "
            "text, subject, conversation or chat message; give this one an id of its own"
        )
