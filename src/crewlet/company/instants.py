"""A schedule of the company document, and the instants at which it is due. Pure.

A cron line means what Debian's cron makes of it when clocks change: a job at fixed hours and minutes that falls into
the skipped hour is due once when that hour is over, one in the repeated hour is due once, the first time; a line whose
minutes or hours begin with `*` goes by the time that really passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

COUNTED_UP_TO: Final = 1000
"""So many instants that went by are counted; of more it is known that they are at least so many."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOWS = (timedelta(minutes=5), timedelta(hours=1), timedelta(days=1))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Mail that a seat is sent again and again.

    Attributes:
        name: `[a-z0-9][a-z0-9-]{0,62}`, unique in the company.
        seat: the handle of the seat.
        message: the text of the mail.
        cron: five fields, or "" where `every_s` is set.
        timezone: the zone in which `cron` is read.
        every_s: whole seconds; the instants are the multiples since the beginning of 1970, UTC, the same on each node.
    """

    name: str
    seat: str
    message: str
    cron: str = ""
    timezone: str = "UTC"
    every_s: int = 0

    @property
    def rule(self) -> str:
        """When it is due, in one line."""
        return f"{self.cron} ({self.timezone})" if self.cron else f"every {_span(self.every_s)}"

    def after(self, instant: datetime) -> datetime | None:
        """The first instant later than this one, in UTC; None where none comes."""
        return next(self._instants(instant), None)

    def newest(self, after: datetime, until: datetime) -> datetime | None:
        """The last instant later than `after` and not later than `until`; None where there is none."""
        if self.every_s:
            newest = _EPOCH + timedelta(seconds=int((until - _EPOCH).total_seconds()) // self.every_s * self.every_s)
            return newest if after < newest <= until else None
        for window in (*_WINDOWS, until - after):
            begin = max(after, until - window)
            newest = None
            for instant in self._instants(begin):
                if instant > until:
                    break
                newest = instant
            if newest is not None or begin == after:
                return newest
        return None

    def count(self, after: datetime, before: datetime) -> int:
        """How many instants lie between the two, neither included; `COUNTED_UP_TO` at most."""
        count = 0
        for instant in islice(self._instants(after), COUNTED_UP_TO):
            if instant >= before:
                break
            count += 1
        return count

    def _instants(self, after: datetime) -> Iterator[datetime]:
        if self.every_s:
            step = int((after - _EPOCH).total_seconds()) // self.every_s
            while True:
                step += 1
                yield _EPOCH + timedelta(seconds=step * self.every_s)
        zone: tzinfo = UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)
        for local in CronSim(self.cron, after.astimezone(zone)):
            instant = local.astimezone(UTC)
            # One that begins in the repeated hour is counted from its first pass; a day that begins in the skipped hour
            # is given with a midnight that no clock shows.
            if instant > after and instant.astimezone(zone) == local:
                yield instant


def _span(seconds: int) -> str:
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
