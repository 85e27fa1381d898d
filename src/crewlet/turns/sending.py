"""Mail that a turn sends."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox, UnknownSeat
from crewlet.mail.work_key import outgoing_id
from crewlet.ports.cells import Admit
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.turns.record import TurnRecord
from crewlet.turns.turn import Fence, OutgoingMail

_log = structlog.get_logger()

T = TypeVar("T")

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
        self._ordinals: dict[str, int] = {}

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
        await self.post(envelope)
        return envelope.id

    async def post(self, envelope: Envelope) -> None:
        """Send a mail that has its id; see `send`.

        Raises:
            Fenced, UnknownSeat, MailRefused: as there.
        """
        published = await self.insist(
            lambda admit: self._outbox.post(envelope, admit=admit),
            f"mail {envelope.id} to {envelope.to}",
        )
        self._record.mails.append(envelope.id)
        if published.is_duplicate:
            _log.info("turn_send_duplicate", message_id=envelope.id, to=envelope.to)

    async def insist(self, ask: Callable[[Admit], Awaitable[T]], what: str) -> T:
        """Ask the same again while nobody answers, for as long as the fence is open.

        Args:
            ask: a repeat of which is safe. It is given the check that it makes in the step of each of its own tries.

        Raises:
            Fenced: the fence is closed.
        """
        pause = _FIRST_PAUSE_S
        while True:
            self._fence.check()
            try:
                return await ask(self._fence.check)
            except Unavailable as error:
                _log.warning("turn_send_unanswered", what=what, error=str(error))
                await self._clock.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    @property
    def timestamp(self) -> str:
        """Now, as mail carries it."""
        return self._outbox.timestamp()

    @property
    def trace_id(self) -> str:
        return self._cause[0].trace_id

    @property
    def depth(self) -> int:
        """How often the work of this turn was passed on, once it is passed on again."""
        return 1 + max(event.delegation_depth for event in self._cause)

    def check_recipient(self, handle: str) -> None:
        """Look for a recipient in the company.

        Raises:
            UnknownSeat: it has no such seat.
        """
        company = self._outbox.company()
        if company.seat(handle) is None:
            raise UnknownSeat(handle, company)

    def _envelope(self, mail: OutgoingMail) -> Envelope:
        ordinal = self._ordinals.get(mail.to, 0)
        self._ordinals[mail.to] = ordinal + 1
        return Envelope(
            id=outgoing_id(self._handle, self._work, mail.to, ordinal),
            type="external_notification",
            timestamp=self._outbox.timestamp(),
            source=f"seat:{self._handle}",
            to=mail.to,
            subject=mail.subject,
            body=mail.body,
            conversation=mail.conversation,
            trace_id=self.trace_id,
            delegation_depth=self.depth,
            parent_turn_id=self._turn_id,
        )
