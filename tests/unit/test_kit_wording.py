"""Instants and counts in sentences for people."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from crewlet.kit import wording


@pytest.mark.parametrize(("count", "said"), [(0, "0 mailboxes"), (1, "1 mailbox"), (2, "2 mailboxes")])
def test_a_count_agrees_with_its_noun(count: int, said: str) -> None:
    assert wording.counted(count, "mailbox", "mailboxes") == said


def test_a_noun_takes_an_s_by_itself() -> None:
    assert [wording.counted(count, "message") for count in (1, 2)] == ["1 message", "2 messages"]


def test_an_instant_of_any_zone_is_told_in_utc_to_the_second() -> None:
    berlin = timezone(timedelta(hours=1))
    assert wording.instant(datetime(2030, 1, 31, 18, 0, 0, 999_999, tzinfo=UTC)) == "2030-01-31T18:00:00Z"
    assert wording.instant(datetime(2030, 2, 1, 0, 30, tzinfo=berlin)) == "2030-01-31T23:30:00Z"
