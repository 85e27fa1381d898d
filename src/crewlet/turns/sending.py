"""Mail that a turn sends."""

from collections import Counter
from collections.abc import Sequence

import structlog

from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.mail.work_key import outgoing_id
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.turns.record import TurnRecord
from crewlet.turns.turn import Fence, OutgoingMail

_log = structlog.get_logger()

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0


class TurnMail:
    """Sends the mail of one run under ids that a re-run of the same work derives again.

    Args:
        work: the work key, or the turn id where that is empty.
    """

    def __init__(
        self,
        *,
        handle: str,
        work: str,
        turn_id: str,
        cause: Sequence[Envelope],
        fence: Fence,
        outbox: Outbox,
        clock: Clock,
        record: TurnRecord,
    ) -> None:
        self._handle = handle
        self._work = work
        self._turn_id = turn_id
        self._cause = cause
        self._fence = fence
        self._outbox = outbox
        self._clock = clock
        self._record = record
        self._ordinals: Counter[str] = Counter()

    async def send(self, mail: OutgoingMail) -> str:
        """Send it, and return its id.

        While nobody answers, the same mail is sent again for as long as the fence is open: that bounds the wait by the
        lease, and a seat that cannot lose its lease waits for its broker. A refused mail has used up its number, so
        that a re-run which asks the same in the same order derives the same ids.

        Raises:
            Fenced: the fence is closed.
            UnknownSeat, MailRefused: nothing was kept.
        """
        self._fence.check()
        envelope = self._envelope(mail)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                published = await self._outbox.post(envelope, admit=self._fence.check)
            except Unavailable as error:
                _log.warning("turn_send_unanswered", message_id=envelope.id, to=mail.to, error=str(error))
                await self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                self._fence.check()
                continue
            self._record.mails.append(envelope.id)
            if published.is_duplicate:
                _log.info("turn_send_duplicate", message_id=envelope.id, to=mail.to)
            return envelope.id

    def _envelope(self, mail: OutgoingMail) -> Envelope:
        ordinal = self._ordinals[mail.to]
        self._ordinals[mail.to] += 1
        return Envelope(
            id=outgoing_id(self._handle, self._work, mail.to, ordinal),
            type="external_notification",
            timestamp=self._outbox.timestamp(),
            source=f"seat:{self._handle}",
            to=mail.to,
            subject=mail.subject,
            body=mail.body,
            conversation=mail.conversation,
            trace_id=self._cause[0].trace_id,
            delegation_depth=1 + max(event.delegation_depth for event in self._cause),
            parent_turn_id=self._turn_id,
        )
