"""What is recorded of schedules: how far each has got, and what became of each instant at which one was due.

An instant is claimed by creating its record, which says at once what was decided: to fire, or not to and why. Whoever
finds a record that still says `claimed` finishes it, by sending the same mail under the same id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec

from crewlet.company.instants import Schedule
from crewlet.mail.ledger import LEDGER_BUCKET
from crewlet.ports.cells import BucketSpec, Cells, Entry, landed
from crewlet.ports.errors import Unavailable

FIRES_BUCKET = BucketSpec("crewlet_fires", max_age_s=LEDGER_BUCKET.max_age_s, allows_entry_ttl=True)

CEILING_S = 24 * 3600.0
"""A fire that is later than this is missed: far shorter than the ledger remembers what it started."""

KEPT_S = 2 * CEILING_S
"""How long the record of an instant is kept."""

State = Literal["claimed", "fired", "skipped_paused", "missed"]


class Overtaken(msgspec.Struct, frozen=True):
    """Instants that went by and were not fired: so many from `first` on, all before `before`, and why.

    `count` is `COUNTED_UP_TO` where there may be more.
    """

    count: int
    first: datetime
    before: datetime
    reason: str


class Fire(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one instant: `claimed` until its mail is known to be out.

    Attributes:
        reason: why it was not fired, or that it was late; or "".
        by: the process that decided.
        seat: whose inbox its mail goes to, also when the document names another seat by then.
        overtaken: what went by before it and has no record of its own.
    """

    instant: datetime
    state: State
    reason: str = ""
    by: str = ""
    seat: str = ""
    overtaken: Overtaken | None = None


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a schedule has got.

    Attributes:
        cron, timezone, every_s: when it was due, as the document had it.
        settled: every instant up to here has been dealt with, or was before the schedule was.
        last: the newest instant of all.
        overtaken: the newest ones that went by.
    """

    settled: datetime
    cron: str = ""
    timezone: str = "UTC"
    every_s: int = 0
    last: Fire | None = None
    overtaken: Overtaken | None = None

    @classmethod
    def of(cls, schedule: Schedule, settled: datetime, last: Fire | None, overtaken: Overtaken | None) -> "Progress":
        return cls(settled, schedule.cron, schedule.timezone, schedule.every_s, last, overtaken)

    def is_of(self, schedule: Schedule) -> bool:
        """Whether the schedule is still due when it was."""
        return (self.cron, self.timezone, self.every_s) == (schedule.cron, schedule.timezone, schedule.every_s)

    def schedule(self, name: str) -> Schedule:
        """When it was due, to mail nobody."""
        return Schedule(name, "", "", self.cron, self.timezone, self.every_s)


@dataclass(frozen=True, slots=True)
class Kept:
    """A progress, and where it stands in the bucket."""

    progress: Progress
    revision: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of an instant, where it stands in the bucket, and since when."""

    fire: Fire
    revision: int
    written_at: datetime


class Fires:
    """The records. Every change is conditional; None or False is that somebody else was first."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def now(self) -> datetime:
        """The store's clock.

        Raises:
            Unavailable: nobody answered.
        """
        return (await self._cells.mark()).store_now

    async def all(self) -> Mapping[str, Kept]:
        """How far every schedule has got, by name.

        Raises:
            Unavailable: nobody answered.
        """
        entries = await self._cells.list("seen.")
        return {entry.key.partition(".")[2]: _kept(entry) for entry in entries}

    async def progress(self, name: str) -> Kept | None:
        """How far one has got.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await self._cells.read(_seen(name))
        return None if entry is None else _kept(entry)

    async def advance(self, name: str, progress: Progress, expect: int | None) -> Kept | None:
        """Write how far a schedule has got, over the revision that was read; None makes its first record.

        Raises:
            Unavailable: nobody said whether it is written.
        """
        key, value = _seen(name), msgspec.json.encode(progress)
        result = await (
            self._cells.create(key, value) if expect is None else self._cells.replace(key, value, expect=expect)
        )
        if not landed(result, f"nobody said how far the schedule {name} is"):
            return None
        return await self.progress(name)

    async def forget(self, name: str, expect: int) -> bool:
        """Remove what is recorded of a schedule that left the document.

        Raises:
            Unavailable: nobody said whether it is gone.
        """
        return landed(
            await self._cells.remove(_seen(name), expect=expect), f"the schedule {name} may be recorded still"
        )

    async def claim(self, name: str, fire: Fire) -> bool:
        """Decide on an instant, before all others. Only True lets the caller go on as if it were the one.

        Raises:
            Unavailable: nobody said. It counts as not ours, and is read the next time.
        """
        result = await self._cells.create(_key(name, fire.instant), msgspec.json.encode(fire), ttl_s=KEPT_S)
        return landed(result, f"nobody said whether {label(fire.instant)} of the schedule {name} is claimed")

    async def at(self, name: str, instant: datetime) -> Recorded | None:
        """What is recorded of an instant.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await self._cells.read(_key(name, instant))
        return None if entry is None else _recorded(entry)

    async def of(self, name: str) -> Sequence[Recorded]:
        """What is recorded of a schedule's instants, oldest first.

        Raises:
            Unavailable: nobody answered.
        """
        return [_recorded(entry) for entry in await self._cells.list(f"fire.{name}.")]

    async def finish(self, name: str, fire: Fire, expect: int) -> bool:
        """Write the end of an instant that was claimed. False: somebody else did.

        Raises:
            Unavailable: nobody said.
        """
        value = msgspec.json.encode(fire)
        result = await self._cells.replace(_key(name, fire.instant), value, expect=expect, ttl_s=KEPT_S)
        return landed(result, f"nobody said whether the end of {label(fire.instant)} of {name} is recorded")


def label(instant: datetime) -> str:
    """An instant as keys and ids have it."""
    return instant.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def mail_id(name: str, instant: datetime) -> str:
    """The id of the mail of one instant: the same, whoever sends it and however often."""
    return f"schedule-{name}-{label(instant)}"


def _seen(name: str) -> str:
    return f"seen.{name}"


def _key(name: str, instant: datetime) -> str:
    return f"fire.{name}.{label(instant)}"


def _kept(entry: Entry) -> Kept:
    try:
        return Kept(msgspec.json.decode(entry.value, type=Progress), entry.revision)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record {entry.key} cannot be read: {error}") from error


def _recorded(entry: Entry) -> Recorded:
    try:
        return Recorded(msgspec.json.decode(entry.value, type=Fire), entry.revision, entry.written_at)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record {entry.key} cannot be read: {error}") from error
