"""Schedules in the company document, and their instants on the days when clocks change."""

from datetime import UTC, datetime, timedelta

import pytest

from crewlet.company.document import parse_company
from crewlet.company.instants import Schedule
from crewlet.kit.refusal import ConfigRefused

HEAD = "name: Desk\nroles:\n  - handle: a\n  - handle: p\n    kind: human\nschedules:\n"


def test_schedules_are_read() -> None:
    text = "  - {name: m, seat: a, cron: '0 8 * * 1-5', timezone: Europe/Berlin, message: Report}\n"
    text += "  - {name: e, seat: a, every: 15m, message: Look}\n"
    company = parse_company(HEAD + text, "c.yaml")
    assert company.schedules == (
        Schedule("m", "a", "Report", "0 8 * * 1-5", "Europe/Berlin"),
        Schedule("e", "a", "Look", every_s=900),
    )
    assert [one.rule for one in company.schedules] == ["0 8 * * 1-5 (Europe/Berlin)", "every 15m"]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ("name: m, seat: x, every: 15m, message: t", "seat", "there is no seat 'x'"),
        ("name: m, seat: p, every: 15m, message: t", "seat", "a person's role"),
        ("name: M, seat: a, every: 15m, message: t", "name", "cannot be a schedule's name"),
        ("name: m, seat: a, every: 15, message: t", "every", "no span of time"),
        ("name: m, seat: a, every: 1s, message: t", "every", "is not from 10s"),
        ("name: m, seat: a, cron: '0 8 * *', message: t", "cron", "it has 4 fields"),
        ("name: m, seat: a, cron: '61 8 * * *', message: t", "cron", "minute"),
        ("name: m, seat: a, cron: '0 0 30 2 *', message: t", "cron", "day-of-month"),
        ("name: m, seat: a, cron: '0 0 * 2 1#5', timezone: Mars/One, message: t", "timezone", "no time zone"),
        ("name: m, seat: a, cron: '0 8 * * *', timezone: localtime, message: t", "timezone", "no time zone"),
        ("name: m, seat: a, cron: '0 8 * * *', timezone: ../../etc/passwd, message: t", "timezone", "no time zone"),
        ("name: m, seat: a, cron: '0 0 8 * * *', message: t", "cron", "it has 6 fields"),
        ("name: m, seat: a, cron: '@daily', message: t", "cron", "it has 1 field"),
        ("name: m, seat: a, cron: '0 0 31 4,6 *', message: t", "cron", "day-of-month"),
        ("name: m, seat: a, cron: '*/0 * * * *', message: t", "cron", "minute"),
        ("name: m, seat: a, cron: '0 8 * * *', every: 15m, message: t", "every", "not both"),
        ("name: m, seat: a, message: t", "", "says not when"),
        ("name: m, seat: a, every: 15m, message: ' '", "message", "this is empty"),
    ],
)
def test_what_is_no_schedule_is_refused_in_a_sentence_with_its_place(fields: str, field: str, words: str) -> None:
    with pytest.raises(ConfigRefused, match=words) as refused:
        parse_company(f"{HEAD}  - {{{fields}}}\n", "c.yaml")
    assert refused.value.where == "c.yaml:7: schedules[0]" + (f".{field}" if field else "")


def test_a_name_is_used_once() -> None:
    one = "  - {name: m, seat: a, every: 15m, message: t}\n"
    with pytest.raises(ConfigRefused, match="'m' is here twice"):
        parse_company(HEAD + one + one, "c.yaml")


def instants(cron: str, zone: str, after: str, count: int) -> list[str]:
    schedule, at = Schedule("m", "a", "t", cron, zone), datetime.fromisoformat(after).replace(tzinfo=UTC)
    found: list[str] = []
    for _ in range(count):
        following = schedule.after(at)
        assert following is not None and following > at
        assert schedule.newest(at, following) == following
        at = following
        found.append(at.strftime("%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 01:00", "30 00:30"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 00:30", "26 01:30"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["08 07:00", "09 06:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["01 05:30", "02 06:30"]),
        ("40 2 * * *", "Europe/Berlin", "2026-10-25T01:35", ["26 01:40"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 01:00", "30 00:00"]),
        ("0 * * * *", "Europe/Berlin", "2026-03-28T23:30", ["29 00:00", "29 01:00", "29 02:00"]),
        ("0 0 29 2 *", "Europe/Berlin", "2026-01-01T00:00", ["28 23:00", "28 23:00"]),
        ("*/30 */2 * 9 0", "America/Santiago", "2026-09-06T02:30", ["06 05:00", "06 05:30", "06 07:00"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:15", ["25 00:30", "25 01:00", "25 01:30"]),
    ],
)
def test_on_days_when_clocks_change_cron_is_what_its_users_expect(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    assert instants(cron, zone, after, len(expected)) == expected


def test_every_so_often_goes_by_the_time_that_passes_also_when_clocks_change() -> None:
    schedule = Schedule("m", "a", "t", every_s=3600)
    for hour in range(4):
        at = datetime(2026, 3, 29, hour, tzinfo=UTC)
        assert schedule.after(at - timedelta(hours=1)) == schedule.after(at - timedelta(seconds=1)) == at


@pytest.mark.parametrize("cron", ["*/30 */2 * * 0", "*/30 * * * *", "15 0 * * *", "0,30 0-3 * * 0"])
@pytest.mark.parametrize(
    ("zone", "around"),
    [
        ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
        ("America/Santiago", datetime(2026, 4, 5, 3, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ],
)
def test_the_instants_around_a_change_of_clocks_are_the_same_from_wherever_they_are_looked_at(
    cron: str, zone: str, around: datetime
) -> None:
    schedule = Schedule("m", "a", "t", cron, zone)
    far: set[datetime] = set()
    at: datetime | None = around - timedelta(days=1)
    while (at := schedule.after(at)) is not None and at < around + timedelta(hours=6):
        far.add(at)
    begin = around - timedelta(hours=7)
    while begin < around + timedelta(hours=6):
        expected = min((one for one in far if one > begin), default=None)
        if expected is None:
            break
        assert schedule.after(begin) == expected
        assert schedule.newest(begin, expected) == expected
        begin += timedelta(minutes=23)
