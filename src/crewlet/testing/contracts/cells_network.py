"""What a `CellStore` across a network promises besides: the truth about lost answers, and no half lists.

Inherit `CellsOverNetworkContract`, and give a pytest fixture `world` that is a `NetworkWorld`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from crewlet.ports.cells import (
    BucketSpec,
    Cells,
    CellStore,
    Done,
    Gone,
    Level,
    Put,
    Refused,
    Unknown,
    WatchEvent,
)
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.testing.contracts.cells import (
    LIMIT_S,
    CellsWorld,
    done,
    keys_of,
    refused,
    until_level,
    value_of,
)

T = TypeVar("T")


class Link(Protocol):
    """The way of one client to the store; see `crewlet.testing.faulty_link`."""

    @property
    def lost(self) -> int: ...
    def heal(self) -> None: ...
    def cut(self) -> None: ...
    def lose_answers(self, count: int) -> None: ...
    def lose_writes(self, count: int) -> None: ...
    def lose_everything(self) -> None: ...
    def lose_some(self, seed: int, share: float) -> None: ...


class NetworkWorld(CellsWorld, Protocol):
    """A shared memory that can be cut off and restarted."""

    async def store_over_link(self) -> tuple[CellStore, Link]:
        """A client of its own, over a link that can be made to fail."""
        ...

    async def restart(self) -> None:
        """End the store, or the member of it that leads, and start it again with what it had."""
        ...


class CellsOverNetworkContract:
    """Each check has a client over a faulty link and, as the witness, one over a whole one."""

    async def pair(
        self, world: NetworkWorld, *, max_age_s: float | None = None, any_writer: bool = False
    ) -> tuple[Cells, Cells, Link]:
        spec = BucketSpec(world.name("net"), max_age_s, any_writer=any_writer)
        store, link = await world.store_over_link()
        return await store.open(spec), await (await world.store()).open(spec), link

    async def test_a_create_whose_answer_was_lost_is_known_to_be_done(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        for count in (1, 2):
            link.lose_answers(count)
            revision = done(await cells.create(f"k{count}", b"mine"))
            entry = await witness.read(f"k{count}")
            assert entry is not None and (entry.value, entry.revision) == (b"mine", revision)

    async def test_a_create_of_any_writer_whose_answer_was_lost_is_there_whatever_is_said_of_it(
        self, world: NetworkWorld
    ) -> None:
        cells, witness, link = await self.pair(world, any_writer=True)
        link.lose_answers(1)
        assert isinstance(await cells.create("k", b"mine"), Done | Refused)
        assert isinstance(await cells.create("k", b"later"), Refused)
        entry = await witness.read("k")
        assert entry is not None and entry.value == b"mine"

    async def test_a_replace_whose_answer_was_lost_is_known_to_be_done_and_lands_once(
        self, world: NetworkWorld
    ) -> None:
        cells, witness, link = await self.pair(world)
        first = done(await cells.create("k", b"1"))
        link.lose_answers(2)
        second = done(await cells.replace("k", b"2", expect=first))
        entry = await witness.read("k")
        assert entry is not None and (entry.value, entry.revision) == (b"2", second)
        assert (await witness.mark()).last_revision == second

    async def test_a_remove_whose_answer_was_lost_is_known_to_be_done(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        first = done(await cells.create("k", b"1"))
        link.lose_answers(1)
        done(await cells.remove("k", expect=first))
        assert await value_of(witness, "k") is None
        link.lose_answers(1)
        again = done(await cells.create("k", b"2"))
        assert (await witness.mark()).last_revision == again

    async def test_a_write_that_never_arrived_is_sent_again(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        link.lose_writes(1)
        first = done(await cells.create("k", b"1"))
        link.lose_writes(2)
        done(await cells.replace("k", b"2", expect=first))
        assert await value_of(witness, "k") == b"2"

    async def test_a_write_is_not_repeated_once_it_is_not_admitted_any_more(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        first = done(await witness.create("k", b"1"))
        lost = 0

        def admit() -> None:
            if link.lost > lost:  # as while a process stands still in the pause before its next try
                raise Fenced("the lease has lapsed")

        for write in (
            lambda: cells.create("other", b"1", admit=admit),
            lambda: cells.replace("k", b"2", expect=first, admit=admit),
            lambda: cells.remove("k", expect=first, admit=admit),
        ):
            lost = link.lost
            link.lose_writes(1)
            try:
                raise AssertionError(f"it was sent again: {await write()}")
            except Fenced:
                pass
        assert (await witness.mark()).last_revision == first
        theirs = done(await witness.replace("k", b"theirs", expect=first))
        assert (await witness.mark()).last_revision == theirs

    async def test_a_peers_write_in_between_refuses_the_repeat(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        link.lose_writes(1)
        writing = asyncio.ensure_future(cells.create("k", b"mine"))
        await _until_lost(link)
        theirs = done(await witness.create("k", b"theirs"))
        assert refused(await writing).actual == theirs
        assert await value_of(witness, "k") == b"theirs"

    async def test_a_write_is_settled_across_a_cut(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        link.lose_answers(1)
        writing = asyncio.ensure_future(cells.create("k", b"1"))
        await _until_lost(link)
        link.cut()
        revision = done(await writing)
        assert (await witness.mark()).last_revision == revision

    async def test_when_nobody_answers_writes_are_unknown_and_reads_unavailable(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world, max_age_s=6)
        first = done(await cells.create("k", b"1"))
        link.lose_everything()
        results = await asyncio.gather(
            cells.create("other", b"1"),
            cells.replace("k", b"2", expect=first),
            cells.remove("k", expect=first),
            cells.read("k"),
            cells.list(),
            cells.mark(),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [Unknown] * 3 + [Unavailable] * 3
        try:
            async with cells.watch():
                raise AssertionError("a watch began although nobody answers")
        except Unavailable:
            pass
        link.heal()
        assert await value_of(witness, "k") == b"1"

    async def test_a_client_works_again_after_the_store_restarted(self, world: NetworkWorld) -> None:
        cells, witness, _ = await self.pair(world)
        first = done(await cells.create("k", b"1"))
        await world.restart()
        for who in (cells, witness):
            async with asyncio.timeout(3 * LIMIT_S):
                while isinstance(result := await who.replace("k", b"2", expect=first), Unknown):
                    pass
            assert isinstance(result, Done | Refused)
        entry = await _at_last(lambda: witness.read("k"))
        assert entry is not None and entry.value == b"2" and entry.revision > first

    async def test_a_watch_repairs_itself_after_a_cut(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        revisions = {key: done(await witness.create(key, b"1")) for key in ("kept", "changed", "removed")}
        async with cells.watch() as events:
            before, _ = await until_level(events)
            seen = _apply({}, before)
            link.lose_everything()
            link.cut()
            done(await witness.replace("changed", b"2", expect=revisions["changed"]))
            done(await witness.remove("removed", expect=revisions["removed"]))
            done(await witness.create("new", b"1"))
            link.heal()
            link.cut()
            await self._is_level_again(events, seen, witness)
            revision = done(await witness.create("after", b"1"))
            async with asyncio.timeout(LIMIT_S):
                while not (isinstance(event := await anext(events), Put) and event.entry.revision == revision):
                    pass

    async def test_a_watch_whose_messages_are_lost_repairs_itself(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        async with cells.watch() as events:
            before, _ = await until_level(events)
            link.lose_everything()
            for number in range(5):
                done(await witness.create(f"k{number}", b"1"))
            await _until_lost(link)
            link.heal()
            await self._is_level_again(events, _apply({}, before), witness)

    async def test_a_watch_repairs_itself_after_a_restart(self, world: NetworkWorld) -> None:
        cells, witness, _ = await self.pair(world)
        done(await witness.create("k", b"1"))
        async with cells.watch() as events:
            before, _ = await until_level(events)
            await world.restart()
            await self._is_level_again(events, _apply({}, before), witness)

    async def test_a_list_over_a_bad_link_is_whole_or_unavailable(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world, max_age_s=30)
        names = [f"seat.s{number:02}" for number in range(40)]
        await asyncio.gather(*(witness.create(name, b"1") for name in names))
        whole = 0
        for seed, share in enumerate((0.0, 0.02, 0.05, 0.6)):
            link.lose_some(seed, share)
            try:
                found = await cells.list("seat.")
            except Unavailable:
                continue
            assert keys_of(found) == names
            whole += 1
        assert whole

    async def test_counting_over_a_bad_link_loses_and_doubles_nothing(self, world: NetworkWorld) -> None:
        cells, witness, link = await self.pair(world)
        for seed in range(2):
            link.heal()
            key = f"counter.{seed}"
            revision = done(await cells.create(key, b"0"))
            link.lose_some(seed, 0.15)
            sure, unsure = 0, 0
            for _ in range(6):
                entry = await _at_last(lambda key=key: cells.read(key))
                assert entry is not None
                match await cells.replace(key, b"%d" % (int(entry.value) + 1), expect=entry.revision):
                    case Done(revision):
                        sure += 1
                    case Unknown():
                        unsure += 1
                    case Refused(actual):
                        # Nobody else writes: only an earlier write of our own, unknown until now, can be in the way.
                        assert unsure and actual != revision
            link.heal()
            counted = int(await value_of(witness, key) or b"")
            assert sure <= counted <= sure + unsure

    async def _is_level_again(self, events: AsyncIterator[WatchEvent], seen: dict[str, int], witness: Cells) -> None:
        """What a reader has gathered is what the store has, at the first level after the repair."""
        async with asyncio.timeout(3 * LIMIT_S):
            while True:
                event = await anext(events)
                if isinstance(event, Level) and event.is_reset:
                    break
                _apply(seen, [event])
        assert seen == {entry.key: entry.revision for entry in await _at_last(witness.list)}


async def _until_lost(link: Link) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not link.lost:
            await asyncio.sleep(0.005)


def _apply(seen: dict[str, int], events: list[WatchEvent]) -> dict[str, int]:
    for event in events:
        match event:
            case Put(entry):
                seen[entry.key] = entry.revision
            case Gone(key, _):
                seen.pop(key, None)
            case Level():
                pass
    return seen


async def _at_last(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, once somebody can give it: after a restart the store may elect for longer than one call waits."""
    async with asyncio.timeout(3 * LIMIT_S):
        while True:
            try:
                return await ask()
            except Unavailable:
                await asyncio.sleep(0.05)
