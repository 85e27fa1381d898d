"""A one-way switch that carries the value it was thrown with."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latch(Generic[T]):
    """Set once, for good. Any number of tasks may wait for it.

    Attributes:
        is_set: whether it is; for reading.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._event = asyncio.Event()
        self._values: list[T] = []
        self._calls: dict[Callable[[T], None], None] = {}

    @property
    def value(self) -> T | None:
        """What it was set with, or None while it is not set."""
        return self._values[0] if self._values else None

    def set(self, value: T) -> bool:
        """Throw it. False when it was set already; the first value stays."""
        if self._values:
            return False
        self._values.append(value)
        self.is_set = True
        self._event.set()
        calls, self._calls = self._calls, {}
        for call in calls:
            call(value)
        return True

    def on_set(self, call: Callable[[T], None]) -> Callable[[], None]:
        """Have `call` told the value in the step in which it is set; now, if it is. It must not raise nor block.

        Returns what ends that.
        """
        if self._values:
            call(self._values[0])
        else:
            self._calls[call] = None
        return lambda: self._calls.pop(call, None)

    async def wait(self) -> T:
        """Wait until it is set.

        Cancellation: leaves it as it is.
        """
        await self._event.wait()
        return self._values[0]
