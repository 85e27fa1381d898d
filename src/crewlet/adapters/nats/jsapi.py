"""Requests to JetStream's API for mail, repeated within a budget; the answers stay plain objects.

The client library's own calls hide error codes, cap listings and reconfigure what they find; mail asks for itself.
An answer that is not what was asked for, whoever gave it, tells nothing.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.translate import ApiError, Fault, cannot_answer
from crewlet.kit.decoding import decode
from crewlet.ports.errors import NotLive, Unavailable
from crewlet.ports.mail import StoreFull

REQUEST_TIMEOUT_S = 1.5
RETRY_PAUSE_S = 0.1

CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
MESSAGE_EXCEEDS_MAXIMUM = 10054
NO_ROOM = frozenset({10023, 10047})
"""The limit of the server's store, or of the account's, is reached."""

Reply = dict[str, Any]


async def ask(
    connection: Connection,
    subject: str,
    body: Mapping[str, Any] | None = None,
    *,
    budget_s: float = 5.0,
    timeout_s: float = REQUEST_TIMEOUT_S,
    shape: type[msgspec.Struct] | None = None,
    admit: Callable[[], None] | None = None,
) -> Reply:
    """Ask the JetStream API, again and again within a budget; for requests that do no harm when repeated.

    Args:
        subject: after `$JS.API.`.
        shape: what the answer must hold, of `shapes`; the answer itself stays a plain object.
        admit: asked in the step of each try, as a process may have stood still in the pause before it.

    Raises:
        ApiError: a definite refusal.
        Unavailable: nobody answered within the budget.
    """
    clock = connection.clock
    data = json.dumps(body).encode() if body is not None else b""
    ends = clock.elapsed() + budget_s
    while True:
        if admit is not None:
            admit()
        try:
            message = await connection.request(f"$JS.API.{subject}", data, timeout_s=timeout_s)
            return parse(message.data, shape)
        except NotLive:
            raise
        except Unavailable as error:
            if clock.elapsed() + RETRY_PAUSE_S >= ends:
                raise Unavailable(str(error)) from error
        await clock.sleep(RETRY_PAUSE_S)


def parse(data: bytes, shape: type[msgspec.Struct] | None = None) -> Reply:
    """The object in an answer.

    Args:
        shape: what it must hold.

    Raises:
        ApiError: a definite refusal.
        StoreFull: it has no room for this.
        Unavailable: the server cannot answer now, or this is not an answer of JetStream's.
    """
    try:
        reply = decode(data, Reply)
        if reply.get("error") is None:
            if shape is not None:
                msgspec.convert(reply, shape)
            return reply
        fault = msgspec.convert(reply["error"], Fault)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the broker's answer cannot be read: {error}") from error
    if fault.err_code in NO_ROOM:
        raise StoreFull(f"the broker has no room left to store anything: {fault.description}")
    if fault.code == 408 or fault.code >= 500:
        raise cannot_answer(fault.err_code, fault.description)
    raise ApiError(fault.code, fault.err_code, fault.description)
