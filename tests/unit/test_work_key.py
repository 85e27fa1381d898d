"""Names that stay the same when work is run again."""

from uuid import UUID

import pytest

from crewlet.mail.work_key import outgoing_id, work_key


def test_a_unit_of_work_has_one_name_whatever_the_order_of_its_events() -> None:
    assert work_key("ceo", ["a", "b"]) == work_key("ceo", ["b", "a", "a"])
    UUID(work_key("ceo", ["a", "b"]))


@pytest.mark.parametrize("other", [["a"], ["a", "b", "c"], ["ab"], ["a", "c"]])
def test_other_events_are_other_work(other: list[str]) -> None:
    assert work_key("ceo", ["a", "b"]) != work_key("ceo", other)


def test_two_seats_working_one_event_do_two_units_of_work() -> None:
    assert work_key("ceo", ["a"]) != work_key("cfo", ["a"])


def test_work_without_a_ledgered_event_has_no_key() -> None:
    assert work_key("ceo", []) == ""


def test_the_mail_of_a_re_run_has_the_same_ids_and_each_mail_its_own() -> None:
    ids = {outgoing_id("ceo", "work", to, ordinal) for to in ("cfo", "cto") for ordinal in (0, 1)}
    assert len(ids) == 4
    assert outgoing_id("ceo", "work", "cfo", 1) in ids
    assert outgoing_id("ceo", "other", "cfo", 1) not in ids
