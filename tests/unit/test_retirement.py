"""What a sweep does about one seat's mailbox, as tables."""

from datetime import UTC, datetime, timedelta

import pytest

from crewlet.duties.maintenance import EVERY_S
from crewlet.mail.registry import MailboxRecord
from crewlet.mail.retirement import (
    GRACE_S,
    LONGEST_BUDGET_S,
    RESUME_AFTER_S,
    TAKE_OVER_AFTER_S,
    Verdict,
    budget_s,
    may_take_over,
    verdict,
    was_taken_over,
)
from crewlet.node.settings_model import MailSettings

NOW = datetime(2030, 1, 10, tzinfo=UTC)


def record(*, absent_s: float | None = None, marked_s: float | None = None) -> MailboxRecord:
    """A record whose absence and mark are so many seconds old."""
    return MailboxRecord(
        "ceo",
        7,
        None if absent_s is None else NOW - timedelta(seconds=absent_s),
        None if marked_s is None else NOW - timedelta(seconds=marked_s),
        "" if marked_s is None else "n1:retire-a",
    )


CASES = [
    (None, True, True, Verdict.REGISTER),
    (None, True, False, Verdict.REGISTER),
    (None, False, True, Verdict.DISCOVER),
    (record(), True, True, Verdict.LEAVE),
    (record(), True, False, Verdict.RESTORE),
    (record(), False, True, Verdict.STAMP),
    (record(), False, False, Verdict.STAMP),
    (record(absent_s=0), True, True, Verdict.RETURN),
    (record(absent_s=10 * GRACE_S), True, False, Verdict.RETURN),
    (record(absent_s=GRACE_S - 1), False, True, Verdict.LEAVE),
    (record(absent_s=-3600), False, True, Verdict.LEAVE),
    (record(absent_s=GRACE_S), False, True, Verdict.RETIRE),
    (record(absent_s=GRACE_S), False, False, Verdict.RETIRE),
    (record(absent_s=2 * GRACE_S, marked_s=0), False, True, Verdict.LEAVE),
    (record(absent_s=2 * GRACE_S, marked_s=0), True, True, Verdict.LEAVE),
    (record(absent_s=2 * GRACE_S, marked_s=60), True, False, Verdict.LEAVE),
    (record(absent_s=2 * GRACE_S, marked_s=RESUME_AFTER_S - 1), False, False, Verdict.LEAVE),
    (record(absent_s=2 * GRACE_S, marked_s=RESUME_AFTER_S), False, False, Verdict.RESUME),
    (record(absent_s=2 * GRACE_S, marked_s=RESUME_AFTER_S), True, False, Verdict.RECOVER),
]


@pytest.mark.parametrize(("found", "is_in_company", "is_whole", "expected"), CASES)
def test_each_state_of_a_seat_has_one_verdict(
    found: MailboxRecord | None, is_in_company: bool, is_whole: bool, expected: Verdict
) -> None:
    decided = verdict(found, is_in_company=is_in_company, is_whole=is_whole, now=NOW, grace_s=GRACE_S)
    assert decided is expected


@pytest.mark.parametrize("grace_s", [1.0, 3600.0, 7 * 24 * 3600.0])
def test_the_grace_is_whole_whatever_its_length(grace_s: float) -> None:
    def decide(absent_s: float) -> Verdict:
        return verdict(record(absent_s=absent_s), is_in_company=False, is_whole=True, now=NOW, grace_s=grace_s)

    assert decide(grace_s - 0.001) is Verdict.LEAVE
    assert decide(grace_s) is Verdict.RETIRE


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (record(), False),
        (record(absent_s=5 * GRACE_S), False),
        (record(absent_s=GRACE_S, marked_s=TAKE_OVER_AFTER_S - 1), False),
        (record(absent_s=GRACE_S, marked_s=TAKE_OVER_AFTER_S), True),
    ],
)
def test_a_retirement_is_waited_for_until_it_has_had_its_time_twice(found: MailboxRecord, expected: bool) -> None:
    assert may_take_over(found, NOW) is expected


@pytest.mark.proves("MB-07")
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, False),
        (record(), True),
        (record(absent_s=GRACE_S), False),
        (record(absent_s=GRACE_S, marked_s=1), False),
        (record(marked_s=1), False),
    ],
)
def test_only_a_record_that_wants_the_mailbox_kept_brings_it_back(found: MailboxRecord | None, expected: bool) -> None:
    assert was_taken_over(found) is expected


@pytest.mark.parametrize(("ttl_s", "expected"), [(3.0, 1.5), (45.0, 22.5), (60.0, 30.0), (3600.0, LONGEST_BUDGET_S)])
def test_a_retirement_ends_while_its_lease_has_half_a_ttl_left(ttl_s: float, expected: float) -> None:
    assert budget_s(ttl_s) == expected


def test_the_times_of_retirement_fit_each_other() -> None:
    """A take-over comes after whatever a retirement may do, and a resumption after every take-over."""
    assert 2 * LONGEST_BUDGET_S <= TAKE_OVER_AFTER_S < RESUME_AFTER_S < GRACE_S


def test_mail_of_a_removed_seat_is_kept_for_a_day_and_a_sweep_comes_each_quarter_of_an_hour() -> None:
    assert (LONGEST_BUDGET_S, RESUME_AFTER_S, EVERY_S) == (30.0, 900.0, 900.0)
    assert GRACE_S == MailSettings().removed_seat_grace_seconds == 86_400.0
