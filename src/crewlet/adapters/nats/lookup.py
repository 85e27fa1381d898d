"""Looking a message up where it lies, and taking it out: one read of a stream's leader each, nothing consumed."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import RETRY_PAUSE_S, ask
from crewlet.adapters.nats.publishing import ID_HEADER, WAKE_HEADER
from crewlet.adapters.nats.shapes import Message, Stream, Success
from crewlet.adapters.nats.streams import stream_of
from crewlet.adapters.nats.translate import NO_MESSAGE, STREAM_NOT_FOUND, ApiError, StoredMessage
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Kept

LOOK_BUDGET_S = 10.0
PLACES_REMEMBERED = 4096


async def read_message(
    connection: Connection, stream: str, which: dict[str, Any], *, budget_s: float = 5.0
) -> StoredMessage | None:
    """One stored message, or None when the stream's leader has none such.

    Args:
        which: as JetStream's `STREAM.MSG.GET` takes it.

    Raises:
        Unavailable: nobody answered.
    """
    try:
        answer = await ask(connection, f"STREAM.MSG.GET.{stream}", which, shape=Message, budget_s=budget_s)
    except ApiError as error:
        if error.err_code in (NO_MESSAGE, STREAM_NOT_FOUND):
            return None
        raise Unavailable(str(error)) from error
    return msgspec.convert(answer["message"], StoredMessage)


async def message_at(connection: Connection, stream: str, place: int, *, budget_s: float = 5.0) -> StoredMessage | None:
    """The message at a place that was once given out, or None when it is surely gone.

    Of several servers one that was deposed, and does not know it, has nothing of what came since. So the one that finds
    nothing must have come as far as the place; and it is asked before and after, as each answer may be another's.

    Raises:
        Unavailable: nobody answered, or only a server that is behind.
    """
    found = await read_message(connection, stream, {"seq": place}, budget_s=budget_s)
    if found is not None:
        return found
    try:
        info = await ask(connection, f"STREAM.INFO.{stream}", shape=Stream, budget_s=budget_s)
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return None
        raise Unavailable(str(error)) from error
    if info["config"].get("num_replicas", 1) == 1:
        return None
    if info["state"]["last_seq"] < place:
        raise Unavailable(f"the server that answered has nothing of {stream} as new as {place}: it is behind")
    return await read_message(connection, stream, {"seq": place}, budget_s=budget_s)


async def remove_message(
    connection: Connection, stream: str, place: int, is_it: Callable[[StoredMessage], bool], *, budget_s: float = 5.0
) -> bool:
    """Delete the message at a place, if it is the one that is meant. Returns whether it was there.

    A delete names a place and nothing else, and a stream that was made anew gives its places out again. So whoever
    deletes looks first, before each try.

    Raises:
        Unavailable: it may be there still.
    """
    clock = connection.clock
    ends = clock.elapsed() + budget_s
    problem: Exception | None = None
    while True:
        found = await message_at(connection, stream, place, budget_s=budget_s)
        if found is None or not is_it(found):
            return problem is not None
        if problem is not None and clock.elapsed() >= ends:
            raise Unavailable(f"the broker did not delete the message at {place}: {problem}") from problem
        try:
            await ask(
                connection, f"STREAM.MSG.DELETE.{stream}", {"seq": place, "no_erase": True}, shape=Success, budget_s=0.0
            )
            return True
        except Unavailable as error:
            problem = error
        except ApiError as error:
            # Also where somebody else took it out meanwhile: what matters is that it is gone.
            problem, ends = error, clock.elapsed()
        await clock.sleep(RETRY_PAUSE_S)


class Places:
    """Where messages were seen to lie: where to look first, never an answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._places: OrderedDict[tuple[str, str], int] = OrderedDict()

    def remember(self, topic: str, message_id: str, place: int) -> None:
        self._places[topic, message_id] = place
        if len(self._places) > PLACES_REMEMBERED:
            self._places.popitem(last=False)

    async def find(self, topic: str, message_id: str) -> Kept | None:
        """The message of an id on a topic, if the stream keeps it. Without a place to begin with, all are looked at.

        Raises:
            Unavailable: nobody answered, or there were too many to look at in a few seconds.
        """
        stream = stream_of(topic).name
        place = self._places.get((topic, message_id))
        if place is not None:
            found = await read_message(self._connection, stream, {"seq": place})
            if found is not None and found.subject == topic and found.headers.get(ID_HEADER) == message_id:
                return _kept(found)
        ends, place = self._connection.clock.elapsed() + LOOK_BUDGET_S, 1
        while (found := await self._next(stream, topic, place)) is not None:
            if found.headers.get(ID_HEADER) == message_id:
                self.remember(topic, message_id, found.seq)
                return _kept(found)
            if self._connection.clock.elapsed() >= ends:
                raise Unavailable("too much waits there to be looked through")
            place = found.seq + 1
        return None

    async def oldest_at(self, topic: str) -> datetime | None:
        """When the oldest message that the stream keeps of a topic was published.

        Raises:
            Unavailable: nobody answered.
        """
        stream, place = stream_of(topic).name, 1
        while (found := await self._next(stream, topic, place)) is not None:
            if WAKE_HEADER not in found.headers:
                return found.time
            place = found.seq + 1
        return None

    async def _next(self, stream: str, topic: str, place: int) -> StoredMessage | None:
        return await read_message(self._connection, stream, {"seq": place, "next_by_subj": topic})


def _kept(message: StoredMessage) -> Kept:
    return Kept(message.seq, message.time, message.data)
