"""Publishing with a definite answer: the same message under the same id until the store says something."""

from collections.abc import Callable, Mapping

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import MESSAGE_EXCEEDS_MAXIMUM, REQUEST_TIMEOUT_S, ask, parse
from crewlet.adapters.nats.shapes import Acknowledged
from crewlet.adapters.nats.streams import stream_of
from crewlet.adapters.nats.translate import (
    ID_IN_PROCESS,
    UNDECIDED_SEQUENCE,
    WRONG_LAST_SEQUENCE,
    ApiError,
    unavailable,
)
from crewlet.ports.errors import CrewletError, Misuse, NotLive, Unavailable
from crewlet.ports.mail import MailRefused, MessageTooLarge, Published, StoreFull

ID_HEADER = "Crewlet-Message-Id"
WAKE_HEADER = "Crewlet-Wake"
DEDUPE_HEADER = "Nats-Msg-Id"
PUBLISH_BUDGET_S = 6.0
RETRY_PAUSE_S = 0.15

_UNDECIDED = frozenset({ID_IN_PROCESS, UNDECIDED_SEQUENCE})
"""Answers of a server that does not know yet: it may hold the message, or come to."""


async def publish_raw(
    connection: Connection,
    topic: str,
    data: bytes,
    headers: Mapping[str, str],
    *,
    message_id: str | None = None,
    budget_s: float | None = None,
    admit: Callable[[], None] | None = None,
) -> Published:
    """Publish, and repeat under the same `message_id` while nobody answers. Without an id it is tried once.

    `is_duplicate` speaks of the first try only: a later one may meet the first. `admit` is asked in the step of each
    try, as a process may have stood still in the pause before it.

    Raises:
        MessageTooLarge: over the server's or the stream's ceiling.
        MailRefused: the stream refused it for another definite reason.
        StoreFull: the server has no room for it.
        Unavailable: unknown.
    """
    sent = {**headers, DEDUPE_HEADER: message_id} if message_id is not None else dict(headers)
    patience_s = PUBLISH_BUDGET_S if budget_s is None else budget_s
    ends = connection.clock.elapsed() + (patience_s if message_id is not None else 0.0)
    is_first = True
    while True:
        if admit is not None:
            admit()
        try:
            answer = await connection.request(topic, data, timeout_s=REQUEST_TIMEOUT_S, headers=sent)
            reply = parse(answer.data, Acknowledged)
            if reply["stream"] == stream_of(topic).name:
                return Published(reply["seq"], is_first and reply.get("duplicate", False))
            unsure = Unavailable(f"another stream than the topic's answered: {reply['stream']!r}")
        except (NotLive, StoreFull):
            raise
        except (Misuse, ApiError) as error:
            code = error.err_code if isinstance(error, ApiError) else MESSAGE_EXCEEDS_MAXIMUM
            if code not in _UNDECIDED:
                if not is_first and code != WRONG_LAST_SEQUENCE:
                    # This try kept nothing; the one that nobody answered may have.
                    raise Unavailable(f"the broker did not confirm the message, and refuses it now: {error}") from error
                raise (MessageTooLarge if code == MESSAGE_EXCEEDS_MAXIMUM else MailRefused)(str(error)) from error
            unsure = Unavailable(f"the broker has not decided on the message yet: {error}")
        except Unavailable as error:
            unsure = error
        is_first = False
        if connection.clock.elapsed() + RETRY_PAUSE_S < ends:
            await connection.clock.sleep(RETRY_PAUSE_S)
            # The process may have stood still: the store knows an id for its window only.
            if connection.clock.elapsed() < ends:
                continue
        why = await _why(connection, topic, unsure) if message_id is not None else str(unsure)
        raise Unavailable(f"the broker did not confirm the message: {why}") from unsure


async def _why(connection: Connection, topic: str, unsure: Unavailable) -> str:
    """Why nobody confirmed a message: a server whose disk is full says nothing to it, and nothing listens for mail to a
    stream that was deleted."""
    stream = stream_of(topic).name
    try:
        await ask(connection, f"STREAM.INFO.{stream}", budget_s=0.0)
    except ApiError as error:
        return str(unavailable(error, stream))
    except CrewletError:
        return str(unsure)
    stores_nothing = "its disk is full, or its members have no quorum (see its log)"
    return f"{unsure}; it answers questions but stores nothing: {stores_nothing}"
