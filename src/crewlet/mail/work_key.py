"""Names that stay the same when work is run again.

A run is named by its turn id. A *unit of work* is named by the ids of the events that make it up, so a re-run of the
same events carries the same name wherever it happens, and whatever was derived from it is derived again.
"""

from collections.abc import Iterable
from hashlib import sha256
from struct import Struct

from crewlet.kit.uuids import uuid_of

_LENGTH = Struct(">Q")


def _name(*parts: str) -> str:
    texts = [part.encode() for part in parts]
    digest = sha256(b"".join([_LENGTH.pack(len(text)) + text for text in texts])).hexdigest()
    return uuid_of(digest, version=8)


def work_key(handle: str, ledgered_ids: Iterable[str]) -> str:
    """The unit of work that these ledgered events make up for a seat; "" for none.

    The order of the ids does not matter, their number does: A+B and A+B+C are two units.
    """
    ids = sorted(set(ledgered_ids))
    return _name("work", handle, *ids) if ids else ""


def outgoing_id(handle: str, work: str, recipient: str, ordinal: int) -> str:
    """The id of the `ordinal`-th mail (from 0) that a unit of work sends to a recipient.

    Args:
        handle: the sending seat.
        work: its work key, or its turn id where the work key is empty.
        recipient: the handle written to.
        ordinal: counts the mails of this run to this recipient.
    """
    return _name("mail", handle, work, recipient, str(ordinal))


def call_id(handle: str, work: str, tool: str, arguments_digest: str, ordinal: int) -> str:
    """The idempotency key of the `ordinal`-th equal call (from 0) of a tool by a unit of work.

    Args:
        handle: the calling seat.
        work: its work key, or its turn id where the work key is empty.
        arguments_digest: hexadecimal; equal for equal arguments.
        ordinal: counts the calls of this run with this tool and these arguments.
    """
    return _name("call", handle, work, tool, arguments_digest, str(ordinal))


def channel_mail_id(channel_id: str, part: str) -> str:
    """The id of a channel's mail: of its `request` or its `message`, of which it has one each."""
    return _name("channel", channel_id, part)
