"""How much a tool server that talks without end is listened to."""

import asyncio
import time

import pytest
from process_kit import until

from crewlet.adapters.mcp import intake

BURST_BYTES = 1_048_576


class Charged(intake.Pace):
    """Little may be said at once; remembers what was.

    Attributes:
        taken: what all that was listened to counts for.
    """

    def __init__(self) -> None:
        super().__init__(burst=BURST_BYTES)
        self.taken = 0.0
        self.began_at = time.monotonic()

    async def charge(self, cost: float) -> None:
        self.taken += cost
        await super().charge(cost)


class Listening:
    """All connections made while this is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._paces: list[Charged] = []
        monkeypatch.setattr(intake, "Pace", self._pace)

    async def assert_slow(self) -> None:
        """Each of them says more than it may at once, and is then listened to no faster than it may talk for ever."""
        await until(lambda: bool(self._paces) and all(pace.taken > BURST_BYTES for pace in self._paces))
        await asyncio.sleep(1)
        for pace in self._paces:
            allowed = BURST_BYTES + intake.PACE_BYTES_S * (time.monotonic() - pace.began_at)
            assert pace.taken < allowed + 2 * BURST_BYTES, pace.taken

    def _pace(self) -> Charged:
        self._paces.append(Charged())
        return self._paces[-1]
