"""What a node tells its parent through shared memory."""

import math
import os
from collections.abc import Iterator

import pytest

from crewlet.supervisor.page import NotAPage, Page, PageDeadline, boottime


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
