"""Pauses on a real broker: what the twins promise of them, its restarts and a line that breaks included."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.system.clock import SystemClock
from crewlet.mail.pauses import PAUSES_KEY, Pauses, Wish
from crewlet.mail.pausewatch import PauseWatch
from crewlet.ports.cells import BucketSpec, CellStore

pytestmark = pytest.mark.real

BOUND_S = 30.0


@asynccontextmanager
async def watching(store: CellStore, bucket: BucketSpec) -> AsyncGenerator[PauseWatch]:
    watch = PauseWatch(await store.open(bucket), SystemClock(), lambda: None)
    watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not is_so():
            await asyncio.sleep(0.02)


def _id(watch: PauseWatch) -> str | None:
    pause = watch.of("alice")
    return pause.id if pause is not None else None


@pytest.mark.proves("HO-07")
async def test_of_many_who_pause_one_seat_at_once_one_wins_and_every_node_learns_which(world: NatsWorld) -> None:
    bucket = BucketSpec(world.name("pauses"))
    stores = [await world.store() for _ in range(3)]
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(watching(store, bucket)) for store in stores]
        people = [Pauses(await store.open(bucket)) for store in stores]
        answers = await asyncio.gather(*(who.pause(["alice"], Wish(f"p{at}")) for at, who in enumerate(people * 3)))
        (winner,) = {answer.pauses["alice"].id for answer in answers}
        await _until(lambda: all(_id(watch) == winner for watch in watches))
        assert (await people[1].resume({"alice": "another"})).lost["alice"] is not None
        assert (await people[2].resume({"alice": winner})).done == ("alice",)
        await _until(lambda: all(_id(watch) is None for watch in watches))
        await people[0].pause(["alice"], Wish("again", for_s=6))
        await _until(lambda: all(_id(watch) == "again" for watch in watches))
        await _until(lambda: all(_id(watch) is None for watch in watches))
        assert await people[0].in_force() == {}


async def test_a_restart_of_the_broker_ends_no_pause_and_hides_none(world: NatsWorld) -> None:
    bucket = BucketSpec(world.name("pauses"))
    store = await world.store()
    people = Pauses(await store.open(bucket))
    async with watching(store, bucket) as watch:
        await people.pause(["alice"], Wish("p1"))
        await _until(lambda: _id(watch) == "p1")
        restarting = asyncio.create_task(world.restart())
        while not restarting.done():
            assert _id(watch) == "p1"
            await asyncio.sleep(0.01)
        await restarting
        question = watch.ask()
        await _until(lambda: watch.is_answered(question))
        assert _id(watch) == "p1"
        await people.pause(["alice"], Wish("p2"), instead_of="p1")
        await _until(lambda: _id(watch) == "p2")


async def test_a_node_behind_a_broken_line_stays_with_what_it_knew_and_catches_up(world: NatsWorld) -> None:
    bucket = BucketSpec(world.name("pauses"))
    people = Pauses(await (await world.store()).open(bucket))
    store, link = await world.store_over_link()
    async with watching(store, bucket) as watch:
        await people.pause(["alice"], Wish("p1"))
        await _until(lambda: _id(watch) == "p1")
        link.refuse()
        await people.resume({"alice": "p1"})
        question = watch.ask()
        await asyncio.sleep(1)
        assert _id(watch) == "p1" and not watch.is_answered(question)
        await link.accept()
        await _until(lambda: _id(watch) is None and watch.is_answered(question))


async def test_a_record_that_was_removed_and_made_again_is_read_anew(world: NatsWorld) -> None:
    bucket = BucketSpec(world.name("pauses"))
    store = await world.store()
    cells = await store.open(bucket)
    async with watching(store, bucket) as watch:
        await Pauses(cells).pause(["alice"], Wish("p1"))
        await _until(lambda: _id(watch) == "p1")
        entry = await cells.read(PAUSES_KEY)
        assert entry is not None
        await cells.remove(PAUSES_KEY, expect=entry.revision)
        await _until(lambda: _id(watch) is None)
        question = watch.ask()
        await _until(lambda: watch.is_answered(question))
        await Pauses(cells).pause(["alice"], Wish("p2"))
        await _until(lambda: _id(watch) == "p2")
