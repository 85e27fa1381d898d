"""The streams that mail lives on, and which of them a topic belongs to."""

from dataclasses import dataclass
from typing import Any

import structlog

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.shapes import Stream, StreamNames
from crewlet.adapters.nats.translate import STREAM_NAME_IN_USE, ApiError
from crewlet.mail.patterns import is_topic
from crewlet.ports.errors import Misuse

NS = 1_000_000_000
DEDUPE_WINDOW_S = 120
RECORD_AGE_S = 30 * 24 * 3600
MAX_CONSUMERS = 1_000_000
"""Said explicitly, because the broker's own default stops a stream at a thousand."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MailStream:
    """One stream. `keeps_interest`: it holds mail until every subscription has settled it, and nothing without one.
    `has_probes`: messages are stored in it that are to go by themselves at once."""

    name: str
    prefix: str
    keeps_interest: bool
    has_probes: bool = False

    def config(self, replicas: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": self.name,
            "subjects": [f"{self.prefix}>"],
            "storage": "file",
            "num_replicas": replicas,
            "retention": "interest" if self.keeps_interest else "limits",
            "max_consumers": MAX_CONSUMERS,
            "duplicate_window": DEDUPE_WINDOW_S * NS,
        }
        if not self.keeps_interest:
            config["max_age"] = RECORD_AGE_S * NS
        if self.has_probes:
            config["allow_msg_ttl"] = True
        return config


AGENT = MailStream("CREWLET_AGENT", "crewlet.agent.", keeps_interest=True)
NOTIFICATIONS = MailStream("CREWLET_NOTIFICATIONS", "crewlet.notifications.", keeps_interest=True)
EVENTS = MailStream("CREWLET_EVENTS", "crewlet.events.", keeps_interest=False)
DEAD_LETTERS = MailStream("CREWLET_DLQ", "dlq.", keeps_interest=False, has_probes=True)
STREAMS = (AGENT, NOTIFICATIONS, EVENTS, DEAD_LETTERS)


def stream_of(topic: str) -> MailStream:
    """The stream that keeps a topic.

    Raises:
        Misuse: it is not a topic (empty, a wildcard, an empty token, a space), or no stream of ours keeps it.
    """
    if is_topic(topic):
        for stream in STREAMS:
            if topic.startswith(stream.prefix):
                return stream
    raise Misuse(f"{topic!r} is not a mail topic")


async def say_what_was_deleted(connection: Connection, *, budget_s: float) -> None:
    """Raise the alarm for streams that were there once: they are made in order, so none is missing before another.

    They are made anew all the same, since a company without its mail stands still; but not in silence.

    Raises:
        Unavailable: nobody answered within the budget.
    """
    made = set(await stream_names(connection, budget_s=budget_s))
    missing: list[str] = []
    for stream in STREAMS:
        if stream.name not in made:
            missing.append(stream.name)
        elif missing:
            for name in missing:
                log.error("mail_stream_lost", stream=name, reason="it was deleted; what waited on it is gone")
            return


async def stream_names(connection: Connection, *, budget_s: float = 10.0) -> list[str]:
    """The names of all streams, however many pages.

    Raises:
        Unavailable: nobody answered within the budget.
    """
    names: list[str] = []
    while True:
        page = await ask(
            connection, "STREAM.NAMES", {"offset": len(names)}, shape=StreamNames, timeout_s=5.0, budget_s=budget_s
        )
        found: list[str] = page.get("streams") or []
        names.extend(found)
        if len(names) >= int(page["total"]) or not found:
            return names


async def ensure_stream(connection: Connection, stream: MailStream, *, replicas: int, budget_s: float) -> None:
    """Make the stream if it is not there; one that exists is adopted as it is.

    Raises:
        Unavailable: nobody answered within the budget.
    """
    wanted = stream.config(replicas)
    try:
        await ask(connection, f"STREAM.CREATE.{stream.name}", wanted, shape=Stream, budget_s=budget_s, timeout_s=5.0)
    except ApiError as error:
        if error.err_code != STREAM_NAME_IN_USE:
            raise
        answer = await ask(connection, f"STREAM.INFO.{stream.name}", shape=Stream, budget_s=budget_s)
        found = answer["config"]
        differs = {key: found.get(key) for key, value in wanted.items() if found.get(key) != value}
        log.warning("mail_stream_adopted", stream=stream.name, differs=differs)
