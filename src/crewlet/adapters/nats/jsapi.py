"""Requests to the broker's JetStream API by hand, with answers told apart: done, refused by name, or nobody said.

The client library's own calls hide error codes, cap listings and reconfigure what they find; mail asks for itself.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol, cast

import nats.errors
from nats.aio.client import Client

from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable

REQUEST_TIMEOUT_S = 1.5
RETRY_PAUSE_S = 0.1

CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
MESSAGE_NOT_FOUND = 10037
STREAM_NAME_IN_USE = 10058
STREAM_NOT_FOUND = 10059
MESSAGE_EXCEEDS_MAXIMUM = 10054
UNAVAILABLE_CODES = frozenset({408, 500, 503})

Answer = dict[str, Any]


class HasClient(Protocol):
    """Whatever holds the connection to the broker."""

    @property
    def client(self) -> Client: ...


class Rejected(Exception):
    """The broker answered, and said no."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({code}/{err_code})")
        self.code = code
        self.err_code = err_code


NO_ANSWER = (nats.errors.Error, asyncio.TimeoutError, OSError)
"""What the client raises when the broker did not answer, or could not be asked."""


async def ask(
    client: Client,
    clock: Clock,
    subject: str,
    body: Mapping[str, Any] | None = None,
    *,
    budget_s: float = 5.0,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Answer:
    """Ask the JetStream API, again and again within a budget; for requests that do no harm when repeated.

    Args:
        subject: after `$JS.API.`.

    Raises:
        Rejected: the broker refused.
        Unavailable: nobody answered within the budget.
    """
    data = json.dumps(body).encode() if body is not None else b""
    ends = clock.elapsed() + budget_s
    while True:
        try:
            message = await client.request(f"$JS.API.{subject}", data, timeout=timeout_s)
            return parse(message.data)
        except Rejected as error:
            if error.code not in UNAVAILABLE_CODES:
                raise
            cause: Exception = error
        except NO_ANSWER as error:
            cause = error
        if clock.elapsed() + RETRY_PAUSE_S >= ends:
            raise Unavailable(f"the broker did not answer {subject}: {cause}") from cause
        await clock.sleep(RETRY_PAUSE_S)


def parse(data: bytes) -> Answer:
    """The object in an answer.

    Raises:
        Rejected: it carries an error.
        Unavailable: it is not an answer of JetStream's.
    """
    try:
        answer = cast("Answer", json.loads(data))
    except ValueError as error:
        raise Unavailable("the broker's answer is not JSON") from error
    error = answer.get("error")
    if error is not None:
        raise Rejected(int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", "")))
    return answer
