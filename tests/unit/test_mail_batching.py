"""How deliveries become partitions."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crewlet.mail.batching import clamped, headroom, in_stream_order, is_worn, may_kill, nak_delay_s, partitions
from crewlet.mail.patterns import is_topic, matcher
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import BatchOptions, Delivery

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def delivery(name: str, sequence: int = 1, *, left: int = 24) -> Delivery:
    return Delivery(name, b"", sequence, 25 - left, left, DAY)


def conversation(one: Delivery) -> str:
    return one.id.partition(":")[0]


def minute(one: Delivery) -> datetime:
    return DAY + timedelta(minutes=int(one.id.partition(":")[2]))


def grouped(names: list[str], options: BatchOptions) -> list[list[str]]:
    return [[one.id for one in part] for part in partitions([delivery(name) for name in names], options)]


BOTH = BatchOptions(partition_key=conversation, dated=minute)


@pytest.mark.proves("BA-07")
@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (BatchOptions(0, -1.0), (1, 0.0)),
        (BatchOptions(-5, 61.0), (1, 60.0)),
        (BatchOptions(101, math.inf), (100, 0.0)),
        (BatchOptions(20, math.nan), (20, 0.0)),
        (None, (1, 0.0)),
    ],
)
def test_options_are_clamped(asked: BatchOptions | None, taken: tuple[int, float]) -> None:
    options = clamped(asked)
    assert (options.max_messages, options.linger_s) == taken


@pytest.mark.proves("BA-02", "BA-03")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["hot:5", "hot:6", "quiet:4"], [["quiet:4"], ["hot:5", "hot:6"]]),
        (["a:5", "b:5", "c:5"], [["a:5"], ["b:5"], ["c:5"]]),
        (["a:9", "a:8", "a:7"], [["a:7", "a:8", "a:9"]]),
        (["a:5", "b:?"], [["a:5"], ["b:?"]]),
        (["b:?", "a:5"], [["b:?"], ["a:5"]]),
        (["a:5", "b:?", "c:4"], [["c:4"], ["a:5"], ["b:?"]]),
        (["a:9", "a:?", "a:1"], [["a:1", "a:9", "a:?"]]),
        ([], []),
    ],
)
def test_the_oldest_conversation_goes_first_and_what_has_no_instant_keeps_its_place(
    names: list[str], expected: list[list[str]]
) -> None:
    assert grouped(names, BOTH) == expected


@pytest.mark.parametrize(
    ("lefts", "expected"),
    [
        ({}, [["a:1", "a:2", "a:3"]]),
        ({"a:1": 13}, [["a:1", "a:2", "a:3"]]),
        ({"a:1": 12}, [["a:1"], ["a:2", "a:3"]]),
        ({"a:2": 0}, [["a:1"], ["a:2"], ["a:3"]]),
        ({"a:3": 5}, [["a:1", "a:2"], ["a:3"]]),
        ({"a:1": 3, "a:2": 3, "a:3": 3}, [["a:1"], ["a:2"], ["a:3"]]),
    ],
)
def test_mail_that_has_used_up_half_its_budget_is_worked_alone_and_in_its_place(
    lefts: dict[str, int], expected: list[list[str]]
) -> None:
    mail = [delivery(f"a:{number}", number, left=lefts.get(f"a:{number}", 24)) for number in (1, 2, 3)]
    worn = {one.sequence for one in mail if is_worn(one)}
    assert [[one.id for one in part] for part in partitions(mail, BOTH, worn)] == expected


@pytest.mark.parametrize(
    ("deliveries", "last_word", "may"),
    [(1, "", False), (2, "", False), (3, "", True), (3, "it broke", False), (12, "", True), (12, "deferred", False)],
)
def test_mail_that_came_back_twice_may_kill_unless_its_last_reader_said_why(
    deliveries: int, last_word: str, may: bool
) -> None:
    assert may_kill(delivery("a", left=25 - deliveries), last_word) is may


def test_a_naive_instant_counts_as_none() -> None:
    options = BatchOptions(dated=lambda one: minute(one).replace(tzinfo=None) if one.id == "b:0" else minute(one))
    assert grouped(["a:5", "b:0"], options) == [["a:5"], ["b:0"]]


@pytest.mark.proves("BA-07")
def test_without_a_usable_key_each_delivery_stands_alone() -> None:
    assert grouped(["a:1", "a:2"], BatchOptions()) == [["a:1"], ["a:2"]]
    assert grouped(["a:1", "a:2"], BatchOptions(partition_key=lambda one: str(1 // 0))) == [["a:1"], ["a:2"]]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 5))), max_size=12))
def test_partitioning_keeps_every_delivery_exactly_once(rows: list[tuple[str, int | None]]) -> None:
    names = [f"{head}:{'?' if at is None else at}" for head, at in rows]
    parts = grouped(names, BOTH)
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(len({name[0] for name in part}) == 1 for part in parts)
    assert len({part[0][0] for part in parts}) == len(parts)


def test_the_back_off_doubles_from_one_second_to_thirty() -> None:
    assert [nak_delay_s(count) for count in (1, 2, 3, 4, 5, 6, 7, 10_000)] == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.proves("DL-03")
def test_a_partition_has_the_headroom_of_its_worst_delivery() -> None:
    assert headroom([delivery("a", left=5)]) == 5
    assert headroom([delivery("a", left=5), delivery("b", left=2)]) == 2
    assert headroom([]) == 0


def test_deliveries_go_back_in_stream_order() -> None:
    assert [one.sequence for one in in_stream_order([delivery("c", 9), delivery("a", 2), delivery("b", 5)])] == [
        2,
        5,
        9,
    ]


@pytest.mark.proves("SU-09")
@pytest.mark.parametrize(
    ("pattern", "topic", "is_match"),
    [
        ("x.*.inbox", "x.a.inbox", True),
        ("x.*.inbox", "x.a.b.inbox", False),
        ("x.*.inbox", "x.inbox", False),
        ("x.>", "x.a", True),
        ("x.>", "x.a.b", True),
        ("x.>", "x", False),
        ("x.>", "xy.a", False),
        ("x.a", "x.a", True),
        ("x.a", "xxa", False),
    ],
)
def test_a_star_is_one_token_and_an_arrow_one_or_more(pattern: str, topic: str, is_match: bool) -> None:
    assert bool(matcher(pattern)(topic)) is is_match


@pytest.mark.parametrize("pattern", ["", ".", "a..b", ">.a", "a.>.b", "a b.c", "a."])
def test_what_is_no_pattern_is_a_misuse(pattern: str) -> None:
    with pytest.raises(Misuse):
        matcher(pattern)


@pytest.mark.parametrize("text", ["", "a", "a..b", ".a", "a.", "a.*", "a.>", "a b.c", "a.b\n"])
def test_what_is_no_topic_is_seen(text: str) -> None:
    assert not is_topic(text)
