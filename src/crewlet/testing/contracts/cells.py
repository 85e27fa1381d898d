"""What every `CellStore` promises. Inherit `CellsContract`, and give a pytest fixture `world` that is a `CellsWorld`.

A store across a network answers to `crewlet.testing.contracts.cells_network` as well.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from crewlet.ports.cells import (
    BucketSpec,
    Cells,
    CellStore,
    Done,
    Entry,
    Gone,
    Level,
    Put,
    Refused,
    WatchEvent,
    WriteResult,
)
from crewlet.ports.errors import Fenced, Misuse, Unavailable
from crewlet.ports.keys import MAX_VALUE_BYTES

LIMIT_S = 20.0
"""How long any single thing may take before a check gives up on it. Never a verdict on speed."""

AGE_S = 2.0
LATE_S = 0.5

BAD_KEYS = ("", ".", "a.", ".a", "a..b", "a b", "seat:a", "a*", "a.>", "\u00e4", "a\n", "a\r\nb")


class CellsWorld(Protocol):
    """One shared memory and ways to reach it."""

    async def store(self) -> CellStore:
        """Another client's way in. Each reaches the same buckets."""
        ...

    def name(self, base: str) -> str:
        """A bucket name that no other check uses."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, for the store too."""
        ...


def closed() -> None:
    """A fence that is."""
    raise Fenced("the lease has lapsed")


def done(result: WriteResult) -> int:
    """The revision of a write that must have been done."""
    assert isinstance(result, Done), result
    return result.revision


def refused(result: WriteResult) -> Refused:
    """A write that must have been refused."""
    assert isinstance(result, Refused), result
    return result


async def value_of(cells: Cells, key: str) -> bytes | None:
    entry = await cells.read(key)
    return None if entry is None else entry.value


async def next_event(events: AsyncIterator[WatchEvent]) -> WatchEvent:
    async with asyncio.timeout(LIMIT_S):
        return await anext(events)


async def until_level(events: AsyncIterator[WatchEvent]) -> tuple[list[WatchEvent], Level]:
    """What comes before the next level, and that level."""
    before: list[WatchEvent] = []
    while True:
        event = await next_event(events)
        if isinstance(event, Level):
            return before, event
        before.append(event)


def _nothing() -> None: ...


async def forget_removed(cells: Cells, turned: Callable[[], None] = _nothing) -> None:
    """Purge every marker, again while some of it is not answered."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await cells.purge_markers(0.0, turned)
                return
            except Unavailable:
                continue


def keys_of(entries: Sequence[Entry]) -> list[str]:
    return [entry.key for entry in entries]


class CellsContract:
    """The promises of `crewlet.ports.cells`."""

    async def bucket(
        self, world: CellsWorld, *, max_age_s: float | None = None, allows_entry_ttl: bool = False
    ) -> Cells:
        return await (await world.store()).open(BucketSpec(world.name("bucket"), max_age_s, allows_entry_ttl))

    async def test_a_created_key_is_read_back_with_its_revision_and_the_stores_time(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        revision = done(await cells.create("seat.alice", b"\x00value\xff"))
        entry = await cells.read("seat.alice")
        assert entry is not None
        assert (entry.key, entry.value, entry.revision) == ("seat.alice", b"\x00value\xff", revision)
        mark = await cells.mark()
        assert mark.last_revision == revision
        assert entry.written_at.tzinfo is not None and entry.written_at <= mark.store_now

    async def test_a_look_at_a_key_or_a_prefix_brings_the_stores_clock_and_last_revision(
        self, world: CellsWorld
    ) -> None:
        cells = await self.bucket(world)
        done(await cells.create("seat.alice", b"1"))
        last = done(await cells.create("seat.bob", b"2"))
        entry, mark = await cells.look("seat.alice")
        assert entry == await cells.read("seat.alice") and entry is not None
        assert mark.last_revision == last and entry.written_at <= mark.store_now
        assert (await cells.look("seat.carol"))[0] is None
        entries, mark = await cells.look_over("seat.")
        assert keys_of(entries) == ["seat.alice", "seat.bob"] and mark.last_revision == last
        assert keys_of((await cells.look_over("node."))[0]) == []

    async def test_a_write_that_is_not_admitted_does_not_leave(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        asked: list[str] = []

        def admit() -> None:
            asked.append("")

        first = done(await cells.create("k", b"1", admit=admit))
        second = done(await cells.replace("k", b"2", expect=first, admit=admit))
        for write in (
            cells.create("other", b"1", admit=closed),
            cells.replace("k", b"3", expect=second, admit=closed),
            cells.remove("k", expect=second, admit=closed),
        ):
            try:
                raise AssertionError(f"it left: {await write}")
            except Fenced:
                pass
        assert (await cells.mark()).last_revision == second
        assert await value_of(cells, "k") == b"2" and await value_of(cells, "other") is None
        done(await cells.remove("k", expect=second, admit=admit))
        assert len(asked) >= 3

    async def test_none_of_some_keys_is_there_only_when_the_store_has_none_of_them(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        for there, value in (("seat.alice", b"1"), ("seat.bob", b"")):
            done(await cells.create(there, value))
            assert not await cells.has_none(["seat.x", there, "seat.y"])

    async def test_a_key_that_is_there_cannot_be_created(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        revision = done(await cells.create("k", b"first"))
        assert refused(await cells.create("k", b"second")).actual == revision
        assert await value_of(cells, "k") == b"first"

    async def test_of_many_concurrent_creates_one_wins(self, world: CellsWorld) -> None:
        name = world.name("race")
        clients = [await (await world.store()).open(BucketSpec(name)) for _ in range(3)]
        tries = [(cells, f"{index}-{number}".encode()) for number in range(8) for index, cells in enumerate(clients)]
        results = await asyncio.gather(*(cells.create("seat.a", value) for cells, value in tries))
        winners = [value for (_, value), result in zip(tries, results, strict=True) if isinstance(result, Done)]
        assert len(winners) == 1
        assert all(isinstance(result, Done | Refused) for result in results)
        assert await value_of(clients[0], "seat.a") == winners[0]

    async def test_a_replace_lands_only_on_the_revision_it_expects(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        first = done(await cells.create("k", b"1"))
        second = done(await cells.replace("k", b"2", expect=first))
        assert second > first
        assert refused(await cells.replace("k", b"3", expect=first)).actual == second
        assert await value_of(cells, "k") == b"2"

    async def test_a_key_that_never_was_cannot_be_replaced_or_removed(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        revision = done(await cells.create("other", b"1"))
        refused(await cells.replace("k", b"1", expect=revision))
        refused(await cells.remove("k", expect=revision))
        assert await value_of(cells, "k") is None

    async def test_of_many_concurrent_replaces_of_one_revision_one_wins(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        revision = done(await cells.create("k", b"0"))
        results = await asyncio.gather(*(cells.replace("k", b"%d" % n, expect=revision) for n in range(20)))
        assert sum(isinstance(result, Done) for result in results) == 1
        assert all(isinstance(result, Done | Refused) for result in results)

    async def test_a_removed_key_is_gone_and_can_be_created_again_but_not_replaced(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        first = done(await cells.create("seat.a", b"1"))
        removed = done(await cells.remove("seat.a", expect=first))
        assert await value_of(cells, "seat.a") is None
        assert await cells.list() == []
        assert removed > first
        refused(await cells.replace("seat.a", b"late", expect=first))
        refused(await cells.remove("seat.a", expect=first))
        again = done(await cells.create("seat.a", b"2"))
        refused(await cells.replace("seat.a", b"late", expect=first))
        refused(await cells.remove("seat.a", expect=first))
        entry = await cells.read("seat.a")
        assert entry is not None and (entry.value, entry.revision) == (b"2", again)

    async def test_a_stale_remove_leaves_the_newer_value(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        first = done(await cells.create("k", b"1"))
        done(await cells.replace("k", b"2", expect=first))
        refused(await cells.remove("k", expect=first))
        assert await value_of(cells, "k") == b"2"

    async def test_no_revision_is_used_twice(self, world: CellsWorld) -> None:
        cells = await self.bucket(world, max_age_s=AGE_S)
        seen: list[int] = []
        for _ in range(3):
            for key in ("a", "b"):
                seen.append(done(await cells.create(key, b"1")))
                seen.append(done(await cells.replace(key, b"2", expect=seen[-1])))
                seen.append(done(await cells.remove(key, expect=seen[-1])))
        seen.append(done(await cells.create("a", b"1")))
        await world.pass_time(AGE_S + LATE_S)
        seen.append(done(await cells.create("a", b"1")))
        assert seen == sorted(set(seen))
        assert seen[0] >= 1
        assert (await cells.mark()).last_revision == seen[-1]

    async def test_a_key_past_its_age_is_gone_and_its_last_revision_is_refused(self, world: CellsWorld) -> None:
        cells = await self.bucket(world, max_age_s=AGE_S)
        assert cells.max_age_s == AGE_S
        revision = done(await cells.create("seat.a", b"1"))
        await world.pass_time(AGE_S + LATE_S)
        assert await value_of(cells, "seat.a") is None
        assert await cells.list("seat.") == []
        refused(await cells.replace("seat.a", b"late", expect=revision))
        refused(await cells.remove("seat.a", expect=revision))
        done(await cells.create("seat.a", b"2"))
        refused(await cells.replace("seat.a", b"late", expect=revision))
        assert await value_of(cells, "seat.a") == b"2"

    async def test_a_replace_restarts_the_age(self, world: CellsWorld) -> None:
        cells = await self.bucket(world, max_age_s=AGE_S)
        revision = done(await cells.create("k", b"1"))
        for _ in range(3):
            await world.pass_time(AGE_S / 2)
            revision = done(await cells.replace("k", b"1", expect=revision))
        assert await value_of(cells, "k") == b"1"

    async def test_a_write_may_bring_an_age_of_its_own(self, world: CellsWorld) -> None:
        cells = await self.bucket(world, allows_entry_ttl=True)
        lasting = done(await cells.create("lasting", b"1", ttl_s=60))
        short = done(await cells.create("short", b"1", ttl_s=1))
        turned = done(await cells.create("turned", b"1", ttl_s=60))
        done(await cells.replace("turned", b"2", expect=turned, ttl_s=1))
        kept = done(await cells.create("kept", b"1", ttl_s=1))
        done(await cells.replace("kept", b"2", expect=kept))
        await world.pass_time(1 + LATE_S)
        assert keys_of(await cells.list()) == ["kept", "lasting"]
        refused(await cells.replace("short", b"late", expect=short))
        done(await cells.replace("lasting", b"2", expect=lasting, ttl_s=60))

    async def test_a_bucket_without_entry_ages_refuses_one(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        for ttl_s in (0.0, 1.0):
            try:
                await cells.create("k", b"1", ttl_s=ttl_s)
            except Misuse:
                continue
            raise AssertionError(f"took ttl_s={ttl_s}")

    async def test_the_first_to_make_a_bucket_decides_its_age(self, world: CellsWorld) -> None:
        name = world.name("adopted")
        await (await world.store()).open(BucketSpec(name, max_age_s=30))
        other = await (await world.store()).open(BucketSpec(name, max_age_s=7))
        assert (other.name, other.max_age_s) == (name, 30)

    async def test_clients_see_one_anothers_writes_at_once(self, world: CellsWorld) -> None:
        name = world.name("shared")
        one, two = [await (await world.store()).open(BucketSpec(name)) for _ in range(2)]
        revision = done(await one.create("k", b"1"))
        for number in range(20):
            assert await value_of(two, "k") is not None
            revision = done(await two.replace("k", b"%d" % number, expect=revision))
            one, two = two, one
        assert [entry.revision for entry in await one.list()] == [revision]

    async def test_a_list_is_whole_and_in_key_order(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        assert await cells.list() == []
        names = [f"seat.s{number}" for number in range(300)] + [
            "seat.al",
            "seat.alice",
            "seat.x.y",
            "seats.z",
            "node.n",
        ]
        await asyncio.gather(*(cells.create(name, name.encode()) for name in names))
        gone = await cells.read("seat.s7")
        assert gone is not None
        done(await cells.remove("seat.s7", expect=gone.revision))
        names.remove("seat.s7")
        everything = await cells.list()
        assert keys_of(everything) == sorted(names)
        assert all(entry.value == entry.key.encode() for entry in everything)
        assert keys_of(await cells.list("seat.")) == sorted(name for name in names if name.startswith("seat."))
        assert keys_of(await cells.list("seat.x.")) == ["seat.x.y"]
        assert keys_of(await cells.list("node.")) == ["node.n"]
        assert await cells.list("nobody.") == []

    async def test_forgetting_what_was_removed_touches_no_key_that_is_there(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        names = [f"seat.s{number:03}" for number in range(150)]
        made = [done(result) for result in await asyncio.gather(*(cells.create(name, b"1") for name in names))]
        for name, revision in zip(names[:100], made, strict=False):
            done(await cells.remove(name, expect=revision))
        last = done(await cells.create(names[0], b"2"))
        assert await cells.purge_markers(3600.0, _nothing) == 0
        await forget_removed(cells)
        assert await cells.purge_markers(0.0, _nothing) == 0
        assert keys_of(await cells.list()) == [names[0], *names[100:]]
        assert await value_of(cells, names[0]) == b"2" and await value_of(cells, names[1]) is None
        assert isinstance(await cells.replace(names[1], b"3", expect=made[1]), Refused)
        assert done(await cells.create(names[1], b"3")) > last

    async def test_a_bad_key_prefix_revision_or_value_is_the_callers_bug(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        tries: list[Awaitable[object]] = [cells.list(prefix) for prefix in ("seat", ".", "seat..", "se*.")]
        tries.append(cells.look_over("seat"))
        for key in BAD_KEYS:
            tries += [cells.read(key), cells.look(key), cells.create(key, b""), cells.remove(key, expect=1)]
        tries += [cells.replace("k", b"", expect=0), cells.remove("k", expect=0)]
        tries += [cells.create("k", b"x" * (MAX_VALUE_BYTES + 1))]
        for result in await asyncio.gather(*tries, return_exceptions=True):
            assert isinstance(result, Misuse), result
        assert (await cells.mark()).last_revision == 0

    async def test_a_value_of_a_mebibyte_is_kept_whole(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        value = bytes(range(256)) * 4096
        done(await cells.create("big", value))
        assert await value_of(cells, "big") == value
        done(await cells.create("empty", b""))
        assert await value_of(cells, "empty") == b""

    async def test_a_watch_tells_the_content_then_a_level_then_every_write_in_order(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        first = done(await cells.create("seat.b", b"1"))
        done(await cells.create("seat.a", b"1"))
        done(await cells.create("node.x", b"1"))
        async with cells.watch("seat.") as events:
            content, level = await until_level(events)
            assert [event.entry.key for event in content if isinstance(event, Put)] == ["seat.b", "seat.a"]
            assert not level.is_reset
            second = done(await cells.replace("seat.b", b"2", expect=first))
            done(await cells.create("node.y", b"1"))
            removed = done(await cells.remove("seat.b", expect=second))
            again = done(await cells.create("seat.b", b"3"))
            seen = [await next_event(events)]
            while (event := seen[-1]) and not (isinstance(event, Put) and event.entry.revision == again):
                seen.append(await next_event(events))
            revisions = [event.entry.revision if isinstance(event, Put) else event.revision for event in told(seen)]
            assert revisions == sorted(revisions)
            assert set(revisions) <= {second, removed, again}
            entry = await cells.read("seat.b")
            assert seen[-1] == Put(entry) if entry else False

    async def test_a_watch_of_nothing_begins_with_a_level(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        async with cells.watch() as events:
            assert await until_level(events) == ([], Level())
            revision = done(await cells.create("k", b"1"))
            event = await next_event(events)
            assert isinstance(event, Put) and event.entry.revision == revision

    async def test_a_watch_tells_of_a_removal(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        revision = done(await cells.create("k", b"1"))
        async with cells.watch() as events:
            await until_level(events)
            removed = done(await cells.remove("k", expect=revision))
            assert await next_event(events) == Gone("k", removed)
        async with cells.watch() as events:
            assert await until_level(events) == ([], Level())

    async def test_a_slow_watcher_misses_values_but_never_the_newest(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        revision = done(await cells.create("k", b"0"))
        async with cells.watch() as events:
            await until_level(events)
            for number in range(1, 200):
                revision = done(await cells.replace("k", b"%d" % number, expect=revision))
            last = 0
            while last != revision:
                event = await next_event(events)
                assert isinstance(event, Put) and event.entry.revision > last
                last = event.entry.revision

    async def test_a_cancelled_wait_for_an_event_loses_nothing(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        async with cells.watch() as events:
            await until_level(events)
            for number in range(10):
                waiting = asyncio.ensure_future(next_event(events))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
                revision = done(await cells.create(f"k{number}", b"1"))
                event = await next_event(events)
                assert isinstance(event, Put) and event.entry.revision == revision

    async def test_writes_beside_the_beginning_of_a_watch_are_not_missed(self, world: CellsWorld) -> None:
        cells = await self.bucket(world)
        wanted = {f"k{number}" for number in range(60)}

        async def write_all() -> None:
            for key in sorted(wanted):
                done(await cells.create(key, b"1"))

        writing = asyncio.ensure_future(write_all())
        try:
            for _ in range(4):
                async with cells.watch() as events:
                    seen = {event.entry.key for event in (await until_level(events))[0] if isinstance(event, Put)}
                    if writing.done():
                        assert seen == wanted
                        break
            async with cells.watch() as events:
                seen = {event.entry.key for event in (await until_level(events))[0] if isinstance(event, Put)}
                while seen != wanted:
                    event = await next_event(events)
                    assert isinstance(event, Put)
                    seen.add(event.entry.key)
        finally:
            await writing


def told(events: Sequence[WatchEvent]) -> list[Put | Gone]:
    """The events that tell of a write."""
    return [event for event in events if not isinstance(event, Level)]
