"""Looking a message up where it lies: one read of a stream's leader each, nothing consumed."""

from collections import OrderedDict
from datetime import datetime
from typing import Any

import msgspec

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.publishing import ID_HEADER, WAKE_HEADER
from crewlet.adapters.nats.streams import stream_of
from crewlet.adapters.nats.translate import NO_MESSAGE, STREAM_NOT_FOUND, ApiError, StoredMessage
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Kept

LOOK_BUDGET_S = 10.0
PLACES_REMEMBERED = 4096


async def read_message(connection: Connection, stream: str, which: dict[str, Any]) -> StoredMessage | None:
    """One stored message, or None when the stream's leader has none such.

    Args:
        which: as JetStream's `STREAM.MSG.GET` takes it.

    Raises:
        Unavailable: nobody answered.
    """
    try:
        answer = await ask(connection, f"STREAM.MSG.GET.{stream}", which)
    except ApiError as error:
        if error.err_code in (NO_MESSAGE, STREAM_NOT_FOUND):
            return None
        raise Unavailable(str(error)) from error
    return msgspec.convert(answer["message"], StoredMessage)


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
    return Kept(message.seq, message.time)
