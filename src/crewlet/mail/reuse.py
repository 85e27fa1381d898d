"""Ids that their senders choose: a repeat under one is the same thing, and anything else under it is refused."""

from hashlib import sha256

import msgspec

from crewlet.mail.envelope import Envelope
from crewlet.ports.errors import Misuse


class IdReused(Misuse):
    """The id names another thing already. Nothing came of this one."""


def text_digest(envelope: Envelope) -> str:
    """Tells apart what senders wrote: equal for a repeat, whenever and from wherever it was sent."""
    said = (envelope.subject, envelope.body, envelope.conversation, envelope.chat_message)
    return sha256(msgspec.json.encode(said)).hexdigest()[:32]
