"""What a dead letter looks like on the wire."""

from collections.abc import Mapping

from crewlet.adapters.nats.publishing import DEDUPE_HEADER, ID_HEADER
from crewlet.adapters.nats.subscriptions import digest, readable
from crewlet.ports.mail import Delivery, Subscription

_REASON_CHARACTERS = 500


def dead_letter(
    subscription: Subscription, stream: str, delivery: Delivery, headers: Mapping[str, str], reason: str
) -> tuple[str, str, dict[str, str]]:
    """Subject, message id and headers of a delivery's dead letter.

    The subject's head is for people; its digest tells which subscription it fell out of. The id names the message in
    its stream, so that burying it twice within the dedupe window keeps one letter.
    """
    mark = digest(subscription)
    subject = f"dlq.{subscription.topic}.{readable(subscription.group)}.{mark}"
    kept = {name: value for name, value in headers.items() if not name.startswith("Nats-")}
    history = {
        ID_HEADER: delivery.id,
        "Crewlet-Topic": subscription.topic,
        "Crewlet-Group": _header_text(subscription.group),
        "Crewlet-Stream": stream,
        "Crewlet-Sequence": str(delivery.sequence),
        "Crewlet-Deliveries": str(delivery.deliveries),
        "Crewlet-Published-At": delivery.published_at.isoformat(),
        "Crewlet-Reason": _header_text(reason),
    }
    if DEDUPE_HEADER in headers:
        history["Crewlet-Dedupe-Id"] = headers[DEDUPE_HEADER]
    message_id = f"{mark}:{stream}:{delivery.sequence}:{delivery.published_at.timestamp():.6f}"
    return subject, message_id, {**kept, **history}


def _header_text(text: str) -> str:
    """One line, within bounds: a header cannot hold a line break."""
    return " ".join(text.split())[:_REASON_CHARACTERS]
