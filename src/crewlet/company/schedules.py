"""Reading `schedules:` of the company document."""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final, NoReturn

from cronsim import CronSimError

from crewlet.company.budgets import read_timezone
from crewlet.company.instants import Schedule
from crewlet.company.rules import is_handle
from crewlet.kit.fields import Block, Field

MAX_SCHEDULES: Final = 1000
SHORTEST_EVERY_S: Final = 10
LONGEST_EVERY_S: Final = 366 * 24 * 3600
MAX_MESSAGE_BYTES: Final = 64 * 1024

_KEYS = ("name", "seat", "cron", "timezone", "every", "message")
_EVERY = re.compile(r"([0-9]{1,9})([smh])")
_UNITS = {"s": 1, "m": 60, "h": 3600}
_PROBE_AT = datetime(2024, 1, 1, tzinfo=UTC)
_CRON_REMEDY = "write minute, hour, day, month and weekday, like `0 8 * * 1-5`"


def read_schedules(
    field: Field, handles: Collection[str] | None, people: Collection[str], timezone: str
) -> tuple[Schedule, ...]:
    """The schedules of a company.

    Args:
        handles: of the seats; None where not all are known, and none is looked for.
        people: the handles of the roles that people fill.
        timezone: of the company: where a cron line is read unless it names another.

    Raises:
        ConfigRefused: with source, line, field and remedy.
    """
    schedules: list[Schedule] = []
    lines: dict[str, int] = {}

    def read(item: Field) -> None:
        block = item.block(_KEYS)
        name = block.require("name", "write `name:` with the schedule's name")
        text = name.text().strip()
        if not is_handle(text):
            remedy = "use 1 to 63 lower-case letters, digits and hyphens, beginning with a letter or digit"
            name.refuse(f"{text!r} cannot be a schedule's name", remedy)
        if text in lines:
            name.refuse(f"the schedule {text!r} is here twice (first on line {lines[text]})", "rename one of them")
        lines[text] = name.line
        schedules.append(_read_schedule(block, text, handles, people, timezone))

    for number, item in enumerate(field.items()):
        if number == MAX_SCHEDULES:
            item.refuse(f"there are more than {MAX_SCHEDULES} schedules", "remove some")
        item.read(read, None)
    return tuple(schedules)


def _read_schedule(
    block: Block, name: str, handles: Collection[str] | None, people: Collection[str], timezone: str
) -> Schedule:
    seat = block.require("seat", "write `seat:` with the handle of the seat to write to")
    handle = seat.text().strip()
    if handle in people:
        seat.refuse(f"{handle!r} is a person's role, which has no inbox", "write the handle of a seat")
    if handles is not None and handle not in handles:
        seat.refuse(f"there is no seat {handle!r}", f"the seats are {', '.join(handles)}" if handles else "add it")
    message = block.require("message", "write `message:` with the text of the mail")
    text = message.text().strip()
    if not text:
        message.refuse("this is empty", "write the text of the mail")
    if len(text.encode(errors="replace")) > MAX_MESSAGE_BYTES:
        message.refuse(f"the message has more than {MAX_MESSAGE_BYTES} bytes", "shorten it")
    cron, every, zone = block.get("cron"), block.get("every"), block.get("timezone")
    if every is not None:
        if cron is not None:
            every.refuse("a schedule has `cron:` or `every:`, not both", "remove one of them")
        if zone is not None:
            zone.refuse("`every:` counts seconds in no zone", "remove it, or write `cron:`")
        return Schedule(name, handle, text, every_s=_read_every(every))
    if cron is None:
        block.field.refuse("this schedule says not when", f"write `every: 15m`, or `cron:`: {_CRON_REMEDY}")
    return _read_cron(cron, Schedule(name, handle, text, timezone=read_timezone(zone) if zone else timezone))


def _read_every(field: Field) -> int:
    text = field.text().strip()
    match = _EVERY.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if match is None:
        field.refuse(f"{text!r} is no span of time", "write a whole number and `s`, `m` or `h`, like `15m`")
    if not SHORTEST_EVERY_S <= seconds <= LONGEST_EVERY_S:
        field.refuse(f"{text!r} is not from {SHORTEST_EVERY_S}s to {LONGEST_EVERY_S // 3600}h", "write such a span")
    return seconds


def _read_cron(field: Field, schedule: Schedule) -> Schedule:
    text = " ".join(field.line_of_text().split())

    def refuse(why: str) -> NoReturn:
        field.refuse(f"{text!r} is no cron line: {why}", _CRON_REMEDY)

    if len(text) > 200:
        refuse("it is longer than 200 characters")
    if (count := len(text.split())) != 5:
        refuse(f"it has {count} field{'' if count == 1 else 's'}, and five are needed")
    read = Schedule(schedule.name, schedule.seat, schedule.message, text, schedule.timezone)
    try:
        first = read.after(_PROBE_AT)
    except CronSimError as error:
        refuse(str(error).replace("Bad ", "nothing matches its field ", 1))
    except (ValueError, TypeError, AssertionError, OverflowError):
        refuse("its fields cannot be read")
    if first is None:
        field.refuse(f"{text!r} never comes", "write days that its months have")
    return read
