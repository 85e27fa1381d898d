"""Sending mail to a seat, from wherever: the recipient is found in the company, never among running agents."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from difflib import get_close_matches

import msgspec

from crewlet.company.model import Company
from crewlet.company.rules import MAX_HANDLE_CHARS
from crewlet.kit import decoding
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.ports.clock import Clock
from crewlet.ports.errors import CrewletError
from crewlet.ports.mail import Mail, Published


class UnknownSeat(CrewletError):
    """The company has no seat of that handle."""

    def __init__(self, handle: str, company: Company) -> None:
        self.handle = handle
        if handle in company.people:
            sentence = f"{handle!r} is a person's role, which has no inbox"
        elif len(handle) > MAX_HANDLE_CHARS:
            sentence = f"the company has no seat {handle[:MAX_HANDLE_CHARS]!r}…: no handle is so long"
        else:
            near = get_close_matches(handle, [seat.handle for seat in company.seats], n=1)
            sentence = f"the company has no seat {handle!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        super().__init__(sentence)


@dataclass(frozen=True, slots=True)
class Outbox:
    """Puts events into seats' inboxes.

    Attributes:
        mail: the port.
        company: the document in force.
        clock: stamps events.
        node_id: stamped on events that carry no node.
    """

    mail: Mail
    company: Callable[[], Company]
    clock: Clock
    node_id: str

    async def post(self, envelope: Envelope, *, admit: Callable[[], None] | None = None) -> Published:
        """Publish an event to the inbox of the seat in `to`.

        Args:
            admit: asked before each time that it leaves (see the mail port).

        Raises:
            UnknownSeat: the company has no such seat.
            NoMailbox, MessageTooLarge: refused; the id is not burnt.
            Unavailable: unknown; a repeat of the same envelope is the same mail.
        """
        company = self.company()
        if company.seat(envelope.to) is None:
            raise UnknownSeat(envelope.to, company)
        stamped = envelope if envelope.node else msgspec.structs.replace(envelope, node=self.node_id)
        return await self.mail.publish(
            topics.inbox(envelope.to).topic, msgspec.json.encode(stamped), message_id=envelope.id, admit=admit
        )

    def timestamp(self) -> str:
        """Now, as envelopes carry it."""
        return self.clock.now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def decode(data: bytes) -> Envelope:
    """Read an event off the wire.

    Raises:
        msgspec.MsgspecError: it is not one.
    """
    return decoding.decode(data, Envelope)
