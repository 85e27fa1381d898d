"""What a node tells its parent through shared memory."""

import math
import os
from collections.abc import Iterator

import pytest

from crewlet.supervisor.page import SLOTS, NotAPage, Page, PageDeadline, PageSlots, boottime


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page.create()
    yield made
    made.close()


@pytest.fixture
def other_end(page: Page) -> Iterator[Page]:
    opened = Page.open(os.dup(page.fd))
    yield opened
    opened.close()


def test_a_fresh_page_has_no_deadline_and_no_beat(page: Page) -> None:
    assert page.read_good_until() is None
    assert page.read_beat() == 0.0


def test_what_one_end_writes_the_other_end_reads(page: Page, other_end: Page) -> None:
    other_end.write_good_until(1234.5678)
    assert page.read_good_until() == 1234.5678


def test_the_newest_instant_wins_also_when_it_is_earlier_or_none(page: Page, other_end: Page) -> None:
    other_end.write_good_until(20.0)
    other_end.write_good_until(10.0)
    assert page.read_good_until() == 10.0
    other_end.write_good_until(None)
    assert page.read_good_until() is None


@pytest.mark.parametrize("instant", [0.0, -3.0, math.nan])
def test_a_senseless_instant_reads_as_long_past_and_never_as_no_deadline(page: Page, instant: float) -> None:
    page.write_good_until(instant)
    read = page.read_good_until()
    assert read is not None and read < boottime()


def test_a_node_cannot_shrink_the_page_under_its_parent(page: Page) -> None:
    with pytest.raises(OSError):
        os.ftruncate(page.fd, 0)


def test_a_descriptor_that_is_no_page_is_refused(tmp_path: os.PathLike[str]) -> None:
    with open(os.path.join(tmp_path, "other"), "w+b") as file:
        file.truncate(1 << 20)
        with pytest.raises(NotAPage):
            PageDeadline.open(file.fileno())
    with pytest.raises(NotAPage):
        PageDeadline.open(987654)


def test_an_opened_page_is_not_inherited_by_the_nodes_own_children(page: Page) -> None:
    fd = os.dup(page.fd)
    os.set_inheritable(fd, True)
    opened = Page.open(fd)
    assert not os.get_inheritable(fd)
    opened.close()


def test_stating_the_deadline_is_a_beat(page: Page) -> None:
    deadline = PageDeadline.open(os.dup(page.fd))
    before = boottime()
    deadline.good_until(None)
    assert before <= page.read_beat() <= boottime()


def test_a_fresh_page_belongs_to_nobody_until_its_owner_says_so(page: Page, other_end: Page) -> None:
    assert (page.read_owner(), page.read_slots()) == ("", [])
    other_end.write_owner("nöde-1:ab12")
    assert page.read_owner() == "nöde-1:ab12"


def test_the_newest_lines_of_each_slot_win(page: Page, other_end: Page) -> None:
    other_end.write_slot(0, ["a", "b"])
    other_end.write_slot(SLOTS - 1, ["z"])
    assert page.read_slots() == [["a", "b"], ["z"]]
    for lines in (["b"], ["b", "c"], ["c"]):
        other_end.write_slot(0, lines)
        assert page.read_slots() == [lines, ["z"]]
    other_end.write_slot(0, ())
    assert page.read_slots() == [["z"]]


def test_a_writer_killed_half_way_leaves_the_lines_of_before(page: Page, other_end: Page) -> None:
    class Killed(BaseException):
        pass

    def die(at: int, size: int, text: bytes) -> None:
        half = text[: len(text) // 2]
        write_whole(at, size, half)
        raise Killed

    other_end.write_slot(0, ["before", "before too"])
    write_whole = other_end._write_text  # pyright: ignore[reportPrivateUsage]
    other_end._write_text = die  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Killed):
        other_end.write_slot(0, ["afterwards", "and more of it"])
    assert page.read_slots() == [["before", "before too"]]


def test_lines_without_room_are_left_out_whole(page: Page) -> None:
    lines = [f"{number:04} " + "x" * 200 for number in range(400)]
    page.write_slot(5, lines)
    page.write_slot(6, ["neighbour"])
    kept, neighbour = page.read_slots()
    assert neighbour == ["neighbour"]
    assert 100 < len(kept) < len(lines)
    assert kept == lines[: len(kept)]


def test_a_slot_is_anothers_when_it_was_closed_and_says_nothing_any_more(page: Page) -> None:
    slots = PageSlots(page, boottime)
    taken = [slots.take() for _ in range(SLOTS)]
    assert None not in taken
    assert slots.take() is None
    first = taken[0]
    assert first is not None
    first.write([("reply", 5.0)])
    first.close()
    first.close()
    again = slots.take()
    assert again is not None
    assert slots.take() is None
    again.write([("other", 6.0)])
    first.write([("late", 7.0)])
    first.close()
    assert page.read_slots() == [["6.000 other"]]


def test_an_instant_of_a_clock_that_counts_no_suspend_is_told_by_the_one_that_does(page: Page) -> None:
    slot = PageSlots(page, lambda: 100.0).take()
    assert slot is not None
    slot.write([("reply", 130.0)])
    ((line,),) = page.read_slots()
    assert float(line.split()[0]) == pytest.approx(boottime() + 30.0, abs=5.0)
