"""Names that stay the same when work is run again.

A run is named by its turn id. A *unit of work* is named by the ids of the events that make it up, so a re-run of the
same events carries the same name wherever it happens, and whatever was derived from it is derived again.
"""

from collections.abc import Iterable
from hashlib import sha256
from uuid import UUID


def _name(*parts: str) -> str:
    digest = sha256()
    for part in parts:
        text = part.encode()
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text)
    raw = bytearray(digest.digest()[:16])
    raw[6] = raw[6] & 0x0F | 0x80  # version 8 and its variant, by hand: `UUID` knows them from Python 3.14 on
    raw[8] = raw[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(raw)))


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
