"""Mail that was delivered and that nobody has: it goes back at once.

Called where nobody lives who could work it: of a dead process of this node, before anything is attached, under leases
that never leave the process and with the lock on the data directory as the proof; of an attachment that ends, what was
sent to it under its own lease and never came.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import REQUEST_TIMEOUT_S
from crewlet.adapters.nats.lookup import read_message
from crewlet.adapters.nats.publishing import WAKE_HEADER
from crewlet.adapters.nats.streams import NS, stream_of
from crewlet.mail.batching import nak_delay_s
from crewlet.ports.deadletters import DeliveryJournal
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Subscription

BUDGET_S = 10.0
"""How long it may take before the node takes its seats; what is left comes back at the end of its window."""


@dataclass(frozen=True, slots=True)
class Left:
    """A consumer with deliveries that nobody has settled.

    Attributes:
        after: what lies up to this place of the stream is settled.
        newest: the newest place that was delivered, and how many deliveries the consumer has made.
    """

    subscription: Subscription
    consumer: str
    after: int
    newest: int
    deliveries: int


def left_by(subscription: Subscription, info: dict[str, Any]) -> Left | None:
    """What a consumer's info tells; None where everything is settled."""
    if not int(info.get("num_ack_pending") or 0):
        return None
    floor, delivered = info["ack_floor"], info["delivered"]
    return Left(
        subscription,
        info["name"],
        int(floor["stream_seq"]),
        int(delivered["stream_seq"]),
        int(delivered["consumer_seq"]),
    )


async def give_back(
    connection: Connection, left: Sequence[Left], journal: DeliveryJournal | None = None, *, budget_s: float = BUDGET_S
) -> int:
    """Hand it back, each consumer's in stream order; returns how many messages were.

    A first delivery comes back at once. Mail that came back before waits as it does after a failure, so that what kills
    its node does not race through its deliveries; without a journal nothing here came to anybody before.

    Raises:
        Unavailable: not all of it, or nobody knows; the rest comes back at the end of its window.
    """
    ends = connection.clock.elapsed() + budget_s
    given = 0
    for each in left:
        stream, place = stream_of(each.subscription.topic).name, each.after + 1
        while place <= each.newest:
            if connection.clock.elapsed() >= ends:
                raise Unavailable(f"after {given} messages the time for it was over")
            found = await read_message(connection, stream, {"seq": place, "next_by_subj": each.subscription.topic})
            if found is None or found.seq > each.newest:
                break
            place = found.seq + 1
            notes = await journal.history(each.subscription, found.seq, found.time) if journal is not None else ()
            delay_s = nak_delay_s(max(note.number for note in notes)) if notes else 0.0
            word = b"-NAK" + (b" " + json.dumps({"delay": round(delay_s * NS)}).encode() if delay_s else b"")
            # The server looks at both sequences, and takes any number that the consumer has given for the second.
            reply = f"$JS.ACK.{stream}.{each.consumer}.1.{found.seq}.{each.deliveries}.0.0"
            await connection.request(reply, word, timeout_s=REQUEST_TIMEOUT_S)
            given += WAKE_HEADER not in found.headers
    return given
