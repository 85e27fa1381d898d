"""Deleting a consumer, up to an answer that no request of ours can belie any more.

A delete names its consumer and nothing else, so one that arrives late takes whatever is there by then. Three things of
the server make that more than a matter of patience:

- What one connection carries takes effect in order, so an answer settles whatever left over it before. What left over a
  connection that broke may still lie with the server, and no answer over another one tells.
- Of several servers the one that leads answers "not found" as soon as a delete is on its way to the others, also when
  it has no quorum and the consumer stays for now. Its word about the consumer itself comes from what is agreed.
- It answers "no leader" before it has done anything.
"""

from collections.abc import Callable

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import CONSUMER_NOT_FOUND, REQUEST_TIMEOUT_S, RETRY_PAUSE_S, ask, parse
from crewlet.adapters.nats.shapes import Consumer, Success
from crewlet.adapters.nats.translate import ApiError, unavailable
from crewlet.ports.errors import NotLive, NotTaken, Unavailable


async def delete_consumer(
    connection: Connection, stream: str, name: str, *, admit: Callable[[], None] | None, patience_s: float
) -> bool:
    """Delete it, asking again while nobody answers; see `Mail.delete_subscription` for the promises."""
    clock = connection.clock
    ends = clock.elapsed() + patience_s
    under_way_over: int | None = None  # which connection the first request left over that may still arrive
    while True:
        if admit is not None:
            admit()
        over = connection.breaks
        try:
            was_there = await _ask_once(connection, stream, name)
            if under_way_over in (None, over):
                return was_there
            problem, is_last = "an earlier request, over a connection that broke, may still arrive", True
        except NotLive:
            raise
        except ApiError as error:
            problem, is_last = str(unavailable(error, stream)), True
        except Unavailable as error:
            problem, is_last = str(error), clock.elapsed() + RETRY_PAUSE_S >= ends
            if under_way_over is None and not isinstance(error, NotTaken):
                under_way_over = over
        if is_last:
            raise NotTaken(problem) if under_way_over is None else Unavailable(problem)
        await clock.sleep(RETRY_PAUSE_S)


async def _ask_once(connection: Connection, stream: str, name: str) -> bool:
    """One request. True: it deleted the consumer; False: there is none.

    Raises:
        ApiError: a definite refusal.
        NotTaken: it had no effect.
        Unavailable: it may have had one, or may yet.
    """
    answer = await connection.request(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", timeout_s=REQUEST_TIMEOUT_S)
    try:
        parse(answer.data, Success)
        return True
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
    try:
        await ask(connection, f"CONSUMER.INFO.{stream}.{name}", shape=Consumer, budget_s=0.0)
    except ApiError as error:
        if error.err_code == CONSUMER_NOT_FOUND:
            return False
        raise
    except NotTaken as error:
        raise Unavailable(str(error)) from error
    raise Unavailable("it is being deleted, and the broker's servers have not agreed on it yet")
