"""How long a claim that came to nothing goes on trying to take back what it wrote."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import Cells, Entry, Unknown, WriteResult
from crewlet.ports.errors import Unavailable
from crewlet.seats.dutyleases import DUTIES_BUCKET, DutyLeases
from crewlet.seats.lease import Granted
from crewlet.seats.leases import EPOCHS_BUCKET
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class _GoneCells:
    """A bucket that stops answering once something was created in it, until it is healed."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.is_gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def read(self, key: str) -> Entry | None:
        if self.is_gone:
            raise Unavailable("no answer")
        return await self._cells.read(key)

    async def create(self, key: str, value: bytes, *, ttl_s: float | None = None) -> WriteResult:
        await self._cells.create(key, value, ttl_s=ttl_s)
        self.is_gone = True
        return Unknown("no answer")


def _case(case: Callable[[VirtualClock, _GoneCells, DutyLeases], Awaitable[None]]) -> None:
    @in_virtual_time
    async def run() -> None:
        clock = VirtualClock()
        store = LocalCells(clock)
        duties = _GoneCells(await store.open(DUTIES_BUCKET))
        epochs = await store.open(EPOCHS_BUCKET)
        leases = DutyLeases(cast(Cells, duties), epochs, clock=clock, entropy=SystemEntropy())
        await case(clock, duties, leases)
        await leases.stop()

    run()


def test_a_claim_of_a_duty_does_not_try_to_give_back_for_longer_than_a_node_may_take_to_stop() -> None:
    async def case(clock: VirtualClock, duties: _GoneCells, leases: DutyLeases) -> None:
        began = clock.elapsed()
        with pytest.raises(Unavailable):
            await leases.claim("maintenance", "n:1", ttl_s=2700)
        assert clock.elapsed() - began < 20

    _case(case)


def test_a_cancelled_claim_of_a_duty_ends_within_seconds_although_the_store_is_away() -> None:
    async def case(clock: VirtualClock, duties: _GoneCells, leases: DutyLeases) -> None:
        claim = asyncio.create_task(leases.claim("maintenance", "n:1", ttl_s=2700))
        await clock.sleep(1)
        claim.cancel()
        began = clock.elapsed()
        await asyncio.wait([claim])
        assert clock.elapsed() - began < 20

    _case(case)


def test_what_could_not_be_given_back_is_out_of_its_own_claims_way() -> None:
    async def case(clock: VirtualClock, duties: _GoneCells, leases: DutyLeases) -> None:
        with pytest.raises(Unavailable):
            await leases.claim("maintenance", "n:1", ttl_s=2700)
        duties.is_gone = False
        began = clock.elapsed()
        assert isinstance(await leases.claim("maintenance", "n:1", ttl_s=2700), Granted)
        assert clock.elapsed() - began < 1

    _case(case)
