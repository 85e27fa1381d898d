"""How many turns one process runs at once."""

import asyncio
from collections import deque

from crewlet.ports.errors import CrewletError

DEFAULT_SLOTS = 32


class SlotsClosed(CrewletError):
    """The process is on its way out: no further turn starts here."""


class Slots:
    """A first-come, first-served gate over the turns of all seats of this process.

    Args:
        limit: turns at once. 0 is the default of 32; a negative number is one.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = DEFAULT_SLOTS if limit == 0 else max(limit, 1)
        self._free = self.limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    @property
    def running(self) -> int:
        return self.limit - self._free

    @property
    def waiting(self) -> int:
        return sum(not future.done() for future in self._waiting)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def take(self) -> "Slot":
        """Wait for a slot.

        Raises:
            SlotsClosed: the gate is closed, or was closed during the wait.

        Cancellation: the place in the line is given up, and a slot that was just handed over goes to the next.
        """
        if self._is_closed:
            raise SlotsClosed("no turn starts here any more")
        if self._free and not self._waiting:
            self._free -= 1
            return Slot(self)
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._hand_on()
            raise
        return Slot(self)

    def close(self) -> None:
        """Let nobody else in; those who wait are turned away at once, those who run are left alone."""
        self._is_closed = True
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(SlotsClosed("no turn starts here any more"))

    def _hand_on(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Slot:
    """The right to run one turn."""

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots | None = slots

    def release(self) -> None:
        """Give it back. A second call does nothing."""
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots._hand_on()  # pyright: ignore[reportPrivateUsage]
