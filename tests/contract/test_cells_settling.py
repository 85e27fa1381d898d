"""How a write is settled on JetStream: each answer of the server, and what may be concluded from it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import msgspec
import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.settle import Conflict, Undecided, Write, settle, verdict
from crewlet.adapters.nats.translate import Fault, PubAck, StoredMessage, store_time
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import BucketSpec, Cells, Done, Refused, Unknown
from crewlet.ports.errors import Unavailable
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.cells import done, refused, value_of
from crewlet.testing.faulty_link import FaultyLink, Frame


@pytest.fixture
async def pair(server: Server) -> AsyncGenerator[tuple[Cells, FaultyLink]]:
    """A bucket over a faulty link."""
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        store, link = await world.store_over_link()
        yield await store.open(BucketSpec(world.name("settling"))), link


def fault(code: int, description: str = "") -> PubAck:
    return PubAck(error=Fault(400, code, description))


@pytest.mark.parametrize(
    ("ack", "expect", "is_replicated", "says"),
    [
        (PubAck(stream="KV_x", seq=7), 6, True, Done(7)),
        (PubAck(stream="KV_x", seq=7, duplicate=True), 6, True, Done(7)),
        (fault(10071, "wrong last sequence: 9"), 6, False, Conflict(9)),
        (fault(10071, "wrong last sequence: 0"), 6, True, Conflict(0)),
        (fault(10071, "wrong last sequence: 3"), 6, False, Conflict(3)),
    ],
)
def test_a_definite_answer_is_taken_as_it_is(
    ack: PubAck, expect: int, is_replicated: bool, says: Done | Conflict
) -> None:
    assert verdict(ack, expect, is_replicated=is_replicated) == says


@pytest.mark.parametrize(
    "ack",
    [
        fault(10164, "wrong last sequence"),
        fault(10158, "message id is in process"),
        fault(10071, "wrong last sequence"),
        fault(10077, "something else"),
        PubAck(),
        PubAck(seq=7),
        PubAck(stream="KV_x"),
    ],
)
def test_anything_else_decides_nothing(ack: PubAck) -> None:
    assert isinstance(verdict(ack, 6, is_replicated=False), Undecided)


def test_a_replica_that_names_an_older_sequence_than_the_writer_knows_is_behind() -> None:
    assert isinstance(verdict(fault(10071, "wrong last sequence: 3"), 6, is_replicated=True), Undecided)


@pytest.mark.parametrize("nanoseconds", [0, 1, 499, 500, 501, 1_499, 1_500, 999_999_499, 999_999_500, 999_999_999])
def test_one_write_has_one_time_however_it_is_told(nanoseconds: int) -> None:
    message = f'{{"subject":"s","seq":1,"time":"2030-01-01T00:00:00.{nanoseconds:09}Z"}}'.encode()
    read = msgspec.json.decode(message, type=StoredMessage).time
    assert store_time(round(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * 10**9 + nanoseconds) == read


UNDECIDED = b'{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"KV_x","seq":0}'
IN_PROCESS = b'{"error":{"code":409,"err_code":10158,"description":"message id is in process"},"stream":"KV_x","seq":0}'

TOO_DEEP = b'{"stream":"KV_x","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.real
@pytest.mark.parametrize("answer", [UNDECIDED, IN_PROCESS, TOO_DEEP], ids=["undecided", "in_process", "too_deep"])
async def test_an_undecided_answer_is_asked_again_until_it_is_definite(
    pair: tuple[Cells, FaultyLink], answer: bytes
) -> None:
    cells, link = pair
    link.answer_writes(3, answer)
    revision = done(await cells.create("k", b"1"))
    assert (await cells.mark()).last_revision == revision
    link.answer_writes(2, answer)
    done(await cells.replace("k", b"2", expect=revision))


GONE = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 0"},"stream":"KV_x","seq":0}'


@pytest.mark.real
@pytest.mark.parametrize("is_behind", [True, False])
async def test_of_several_members_one_that_is_behind_cannot_say_that_a_key_is_gone(
    server: Server, is_behind: bool
) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        link = await stack.enter_async_context(FaultyLink(server.url))
        connection = await world.connect(link.url)
        spec = BucketSpec(world.name("behind"))
        cells = await NatsCells(connection, entropy=SystemEntropy()).open(spec)
        first = done(await cells.create("k", b"1"))

        def answer(frame: Frame) -> bytes | None:
            if frame.is_write_answer:
                link.heal()
                link.on_answer = of_the_past if is_behind else link.on_answer
                return frame.with_payload(GONE)
            return frame.raw

        def of_the_past(frame: Frame) -> bytes | None:
            if frame.body is not None and b"stream_info_response" in frame.body:
                link.heal()
                return frame.with_payload(frame.body.replace(b'"last_seq":', b'"last_seq":0,"was":'))
            return frame.raw

        link.on_answer = answer
        write = Write(f"KV_{spec.name}", f"$KV.{spec.name}.k", b"2", first, "w", is_replicated=True)
        result = await settle(Lane(connection), write, budget_s=20.0)
        assert result == (Done(first + 1) if is_behind else Refused(None))


@pytest.mark.real
async def test_an_answer_that_stays_undecided_is_unknown(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        store, link = await world.store_over_link()
        cells = await store.open(BucketSpec(world.name("undecided"), max_age_s=2))
        first = done(await cells.create("k", b"1"))
        link.answer_writes(10_000, UNDECIDED)
        assert isinstance(await cells.replace("k", b"2", expect=first), Unknown)


@pytest.mark.real
async def test_a_duplicate_answer_is_done(pair: tuple[Cells, FaultyLink]) -> None:
    cells, link = pair
    link.answer_writes(1, b'{"stream":"KV_x","seq":41,"duplicate":true}')
    assert await cells.create("k", b"1") == Done(41)


@pytest.mark.real
async def test_a_repeat_meets_its_own_record_by_its_id_and_not_by_its_value(
    server: Server, pair: tuple[Cells, FaultyLink]
) -> None:
    cells, link = pair
    async with AsyncExitStack() as stack:
        witness = await (await NatsWorld(server.urls, stack=stack).store()).open(BucketSpec(cells.name))
        link.lose_writes(1)
        writing = asyncio.ensure_future(cells.create("k", b"same"))
        while not link.lost:
            await asyncio.sleep(0.005)
        done(await witness.create("k", b"same"))
        refused(await writing)


@pytest.mark.real
async def test_every_repeat_carries_the_id_and_expectation_of_the_first(pair: tuple[Cells, FaultyLink]) -> None:
    cells, link = pair
    first = done(await cells.create("k", b"1"))
    sent: list[bytes] = []

    def note(frame: Frame) -> bytes:
        if frame.is_write and frame.body is not None:
            sent.append(frame.body)
        return frame.raw

    link.on_request = note
    link.answer_writes(3, UNDECIDED)
    done(await cells.replace("k", b"2", expect=first))
    assert len(sent) == 4 and len(set(sent)) == 1
    assert b"Nats-Msg-Id: " in sent[0] and b"Nats-Expected-Last-Subject-Sequence: 1" in sent[0]


@pytest.mark.real
async def test_a_write_is_one_round_trip(pair: tuple[Cells, FaultyLink]) -> None:
    cells, link = pair
    asked: list[bytes] = []

    def note(frame: Frame) -> bytes:
        if frame.head != b"PING":
            asked.append(frame.head)
        return frame.raw

    first = done(await cells.create("k", b"1"))
    link.on_request = note
    second = done(await cells.replace("k", b"2", expect=first))
    refused(await cells.replace("k", b"3", expect=first))
    done(await cells.create("other", b"1"))
    done(await cells.remove("k", expect=second))
    assert len(asked) == 4, asked


@pytest.mark.real
async def test_the_settling_of_a_write_ends_within_a_third_of_its_age(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        store, link = await world.store_over_link()
        cells = await store.open(BucketSpec(world.name("budget"), max_age_s=3, allows_entry_ttl=True))
        sent: list[bytes] = []
        link.on_answer = lambda frame: None if frame.carries_message else frame.raw
        link.on_request = lambda frame: (sent.append(frame.head) if frame.is_write else None) or frame.raw
        clock = SystemClock()
        before = clock.elapsed()
        assert isinstance(await cells.create("k", b"1"), Unknown)
        # A bound from below only: what is too early is a fault on any machine, what is late may be the machine.
        assert clock.elapsed() - before >= 0.9
        assert 2 <= len(sent) <= 4
        sent.clear()
        assert isinstance(await cells.create("short", b"1", ttl_s=1), Unknown)
        assert len(sent) <= 4


@pytest.mark.real
async def test_a_cancelled_write_ends_at_once_even_when_its_answer_arrives(pair: tuple[Cells, FaultyLink]) -> None:
    cells, _ = pair
    for number in range(100):
        writing = asyncio.ensure_future(cells.create(f"k{number}", b"1"))
        while not writing.done():
            await asyncio.sleep(0)
            if number % 3 == 0 or await cells.read(f"k{number}") is not None:
                break
        asked = not writing.done() and writing.cancel()
        await asyncio.wait({writing})
        assert writing.cancelled() or not asked


@pytest.mark.real
async def test_a_record_in_the_way_that_is_gone_again_proves_nothing(pair: tuple[Cells, FaultyLink]) -> None:
    cells, link = pair
    other = done(await cells.create("other", b"1"))
    gone = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 987654"},"stream":"x","seq":0}'
    link.answer_writes(1, gone)
    # The create landed; its answer names a record that cannot be read. Asked again, it finds itself.
    done(await cells.create("k", b"1"))
    assert await value_of(cells, "k") == b"1"
    assert await cells.replace("other", b"2", expect=other) == Done((await cells.mark()).last_revision)


@pytest.mark.real
async def test_a_list_of_ten_thousand_keys_is_whole(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        cells = await (await world.store()).open(BucketSpec(world.name("many")))
        names = [f"seat.s{number:05}" for number in range(10_000)]

        async def put(name: str) -> None:
            # A busy machine may leave one unanswered; what landed unheard refuses the repeat.
            while isinstance(await cells.create(name, b"1"), Unknown):
                pass

        for start in range(0, len(names), 200):
            await asyncio.gather(*(put(name) for name in names[start : start + 200]))
        assert [entry.key for entry in await cells.list("seat.")] == names
        assert await cells.list("node.") == []


@pytest.mark.real
async def test_a_bucket_that_asks_for_more_replicas_than_there_are_servers_is_refused(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, replicas=3, stack=stack)
        with pytest.raises(ConfigRefused, match=r"stream\.replicas"):
            await (await world.store()).open(BucketSpec(world.name("three")))


@pytest.mark.real
async def test_removed_keys_leave_no_mark_for_ever(pair: tuple[Cells, FaultyLink]) -> None:
    cells, link = pair
    sent: list[bytes] = []
    link.on_request = lambda frame: (sent.append(frame.body or b"") if frame.is_write else None) or frame.raw
    revision = done(await cells.create("k", b"1"))
    done(await cells.remove("k", expect=revision))
    assert b"Nats-TTL: 14400s" in sent[-1]
    done(await cells.create("k", b"2"))


@pytest.mark.real
async def test_an_answer_that_holds_nothing_says_of_no_key_that_it_is_not_there(pair: tuple[Cells, FaultyLink]) -> None:
    cells, link = pair
    done(await cells.create("k", b"1"))
    link.on_answer = lambda frame: (
        frame.with_payload(b"{}") if frame.body is not None and frame.body.startswith(b'{"type":"io.') else frame.raw
    )
    with pytest.raises(Unavailable):
        await cells.read("k")
    with pytest.raises(Unavailable):
        await cells.list()
    with pytest.raises(Unavailable):
        await cells.mark()
