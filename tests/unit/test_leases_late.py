"""A renewal that reaches the store only after its lease has lapsed."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells, Unknown, WriteResult
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import Granted
from crewlet.seats.leases import LeaseStore
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class _HeldCells:
    """Keeps the next replace on the way until it is let go."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.holds_next = False
        self.land: Callable[[], Awaitable[WriteResult]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def replace(self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None) -> WriteResult:
        if self.holds_next:
            self.holds_next = False
            self.land = lambda: self._cells.replace(key, value, expect=expect, ttl_s=ttl_s)
            return Unknown("no answer")
        return await self._cells.replace(key, value, expect=expect, ttl_s=ttl_s)


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_a_renewal_that_lands_after_the_lapse_was_seen_brings_the_tenure_back_for_nobody(verb: str) -> None:
    @in_virtual_time
    async def case() -> None:
        clock = VirtualClock()
        store = LocalCells(clock)
        held = _HeldCells(await store.open(BucketSpec("crewlet_leases", max_age_s=60)))
        epochs = await store.open(BucketSpec("crewlet_epochs"))
        leases = LeaseStore(cast(Cells, held), epochs, clock=clock, entropy=SystemEntropy())
        won = await leases.claim("seat:a", "n:1", ttl_s=10)
        assert isinstance(won, Granted)
        await clock.sleep(5)
        held.holds_next = True
        with pytest.raises(Unavailable):
            await leases.renew("seat:a", "n:1", 1)
        await clock.sleep(6)
        asked = leases.renew if verb == "renew" else leases.release
        assert await asked("seat:a", "n:1", 1) is False
        assert held.land is not None
        await held.land()
        assert await leases.renew("seat:a", "n:1", 1) is False
        # Given back: a peer need not wait for it to lapse once more, and its own owner gets a new tenure.
        again = await leases.claim("seat:a", "n:1", ttl_s=10)
        assert isinstance(again, Granted) and again.lease.epoch == 2
        await leases.stop()

    case()
