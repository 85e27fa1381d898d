"""The news of freed seats, between a host and the signals of its fleet."""

from collections.abc import Callable

import msgspec
import structlog

from crewlet.ports.signals import Forget, Signals
from crewlet.seats import news
from crewlet.seats.news import Freed

_log = structlog.get_logger()

SIGNAL = "seats_freed"
NAMED_AT_ONCE = 1000
"""Handles in one message, which keeps it far below what a signal may hold."""


class FreedNews:
    """Sends what the host frees, and passes on what peers do."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def tell(self, freed: Freed) -> None:
        """Broadcast it: one message, unless there are more seats than one may name."""
        _log.info("seats_freed", seats=list(freed.seats), standing=freed.standing)
        for begin in range(0, len(freed.seats), NAMED_AT_ONCE):
            part = msgspec.structs.replace(freed, seats=freed.seats[begin : begin + NAMED_AT_ONCE])
            self._signals.broadcast(SIGNAL, news.encode(part))

    async def listen(self, hear: Callable[[Freed], None]) -> Forget:
        """Have `hear` told of every such news; it must not block."""

        def read(data: bytes) -> None:
            try:
                freed = news.decode(data)
            except ValueError as error:
                _log.warning("seats_freed_unreadable", error=str(error), bytes=len(data))
                return
            hear(freed)

        return await self._signals.listen(SIGNAL, read)
