"""Local leases and shared ones on one broker: never both at once, and who is in the way is named."""

import asyncio

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import Cells
from crewlet.seats.keeper import AGE_S, KEEPER_BUCKET, KEY, KeeperMark, wait_until_nobody_keeps
from crewlet.testing.virtual import VirtualClock, in_virtual_time

BESIDE = r"^coordination\.type: laptop:1 runs this company's seats on this broker with local leases"


class Place:
    """One broker, and who shares leases on it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = LocalCells(self.clock)
        self.sharing: list[str] = []

    async def cells(self) -> Cells:
        return await self.store.open(KEEPER_BUCKET)

    async def mark(self, owner: str) -> KeeperMark:
        async def sharing() -> list[str]:
            return self.sharing

        return KeeperMark(await self.cells(), owner, self.clock, sharing)


@in_virtual_time
async def test_a_node_that_shares_leases_is_refused_beside_one_that_keeps_its_own() -> None:
    place = Place()
    began = place.clock.elapsed()
    await wait_until_nobody_keeps(await place.cells(), place.clock)
    assert place.clock.elapsed() == began
    mark = await place.mark("laptop:1")
    await mark.write()
    keeping = asyncio.create_task(mark.contested())
    with pytest.raises(ConfigRefused, match=BESIDE):
        await wait_until_nobody_keeps(await place.cells(), place.clock)
    keeping.cancel()
    await mark.end()
    began = place.clock.elapsed()
    await wait_until_nobody_keeps(await place.cells(), place.clock)
    assert place.clock.elapsed() == began


@in_virtual_time
async def test_the_mark_of_a_node_that_died_is_waited_for_by_others_and_not_by_its_own_next_run() -> None:
    place = Place()
    await (await place.mark("laptop:1")).write()
    began = place.clock.elapsed()
    later = await place.mark("laptop:2")
    await later.write()
    await (await place.mark("laptop:1")).end()
    assert place.clock.elapsed() == began
    await wait_until_nobody_keeps(await place.cells(), place.clock)
    assert AGE_S <= place.clock.elapsed() - began < AGE_S + 2


@in_virtual_time
async def test_whoever_came_while_the_mark_had_aged_out_is_found_at_the_next_renewal() -> None:
    place = Place()
    mark = await place.mark("laptop:1")
    await mark.write()
    keeping = asyncio.create_task(mark.contested())
    await place.clock.sleep(3 * AGE_S)
    assert not keeping.done()
    place.sharing = ["a:1", "b:1"]
    await place.clock.sleep(AGE_S / 2)
    assert "a:1, b:1 came to hold leases of this company on this broker" in str(await keeping)


@in_virtual_time
async def test_a_mark_that_cannot_be_read_is_somebodys() -> None:
    place = Place()
    cells = await place.cells()

    async def renew() -> None:
        while True:
            entry = await cells.read(KEY)
            writing = cells.create(KEY, b"[") if entry is None else cells.replace(KEY, b"[", expect=entry.revision)
            await writing
            await place.clock.sleep(AGE_S / 3)

    renewing = asyncio.create_task(renew())
    await place.clock.sleep(1)
    with pytest.raises(ConfigRefused, match="a node of another build runs"):
        await wait_until_nobody_keeps(cells, place.clock)
    renewing.cancel()
