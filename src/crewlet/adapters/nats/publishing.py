"""Publishing with a definite answer: the same message under the same id until the store says something."""

from collections.abc import Callable, Mapping

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import MESSAGE_EXCEEDS_MAXIMUM, REQUEST_TIMEOUT_S, parse
from crewlet.adapters.nats.translate import ID_IN_PROCESS, UNDECIDED_SEQUENCE, ApiError
from crewlet.ports.errors import Misuse, NotLive, Unavailable
from crewlet.ports.mail import MailRefused, MessageTooLarge, Published

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
    budget_s: float = PUBLISH_BUDGET_S,
    admit: Callable[[], None] | None = None,
) -> Published:
    """Publish, and repeat under the same `message_id` while nobody answers. Without an id it is tried once.

    `is_duplicate` speaks of the first try only: a later one may meet the first. `admit` is asked in the step of each
    try, as a process may have stood still in the pause before it.

    Raises:
        MessageTooLarge: over the server's or the stream's ceiling.
        MailRefused: the stream refused it for another definite reason.
        Unavailable: unknown.
    """
    sent = {**headers, DEDUPE_HEADER: message_id} if message_id is not None else dict(headers)
    ends = connection.clock.elapsed() + (budget_s if message_id is not None else 0.0)
    is_first = True
    while True:
        if admit is not None:
            admit()
        try:
            reply = parse((await connection.request(topic, data, timeout_s=REQUEST_TIMEOUT_S, headers=sent)).data)
            return Published(int(reply["seq"]), is_first and bool(reply.get("duplicate", False)))
        except NotLive:
            raise
        except Misuse as error:
            raise MessageTooLarge(str(error)) from error
        except ApiError as error:
            if error.err_code == MESSAGE_EXCEEDS_MAXIMUM:
                raise MessageTooLarge(str(error)) from error
            if error.err_code not in _UNDECIDED:
                raise MailRefused(str(error)) from error
            if connection.clock.elapsed() + RETRY_PAUSE_S >= ends:
                raise Unavailable(f"the broker has not decided on the message on {topic}: {error}") from error
        except Unavailable as error:
            if connection.clock.elapsed() + RETRY_PAUSE_S >= ends:
                raise Unavailable(f"the broker did not confirm the message on {topic}: {error}") from error
        is_first = False
        await connection.clock.sleep(RETRY_PAUSE_S)
