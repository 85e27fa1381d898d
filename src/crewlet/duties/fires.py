"""What is recorded of schedules: how far each has got, and what became of each instant at which one was due.

An instant is claimed by creating its record, which says at once what was decided: to fire, or not to and why. Whoever
finds a record that still says `claimed` finishes it, by sending the same mail under the same id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec
import structlog

from crewlet.company.instants import Schedule
from crewlet.duties.asking import Asking
from crewlet.kit.decoding import Instant, decode
from crewlet.mail.ledger import LEDGER_BUCKET
from crewlet.ports.cells import BucketSpec, Cells, Entry, landed
from crewlet.ports.errors import Unavailable

FIRES_BUCKET = BucketSpec("crewlet_fires", max_age_s=LEDGER_BUCKET.max_age_s, allows_entry_ttl=True)

_log = structlog.get_logger()

KEPT_S = 48 * 3600.0
"""How long the record of an instant is kept: longer than any clock that was set back is followed, so that none is
decided on twice."""

State = Literal["claimed", "fired", "skipped_paused", "skipped_catchup", "refused"]
"""`skipped_catchup`: it went by, and is not caught up. `refused`: nobody would take its mail."""


class Overtaken(msgspec.Struct, frozen=True):
    """Instants that went by and were not fired: so many from `first` on, all before `before`, and why.

    `count` is `COUNTED_UP_TO` where there may be more.
    """

    count: int
    first: Instant
    before: Instant
    reason: str


class Fire(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one instant: `claimed` until its mail is known to be out.

    Attributes:
        reason: why it was not fired, or that it was late; or "".
        by: the process that decided.
        seat: whose inbox its mail goes to, also when the document names another seat by then.
        overtaken: what went by before it and has no record of its own.
    """

    instant: Instant
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

    settled: Instant
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
    """The records. Every change is conditional; None or False is that somebody else was first.

    Args:
        ask: through which a duty asks the store.
    """

    def __init__(self, cells: Cells, ask: Asking) -> None:
        self._cells = cells
        self._ask = ask

    async def now(self) -> datetime:
        """The store's clock.

        Raises:
            Unavailable: nobody answered.
        """
        return (await self._ask(self._cells.mark(), "the store's clock")).store_now

    async def all(self) -> Mapping[str, Kept]:
        """How far every schedule has got, by name. A record that cannot be read is logged and left out: its schedule
        cannot begin anew over it, and the others go on.

        Raises:
            Unavailable: nobody answered.
        """
        found: dict[str, Kept] = {}
        for entry in await self._ask(self._cells.list("seen."), "how far every schedule is"):
            try:
                found[entry.key.partition(".")[2]] = _kept(entry)
            except Unavailable as error:
                _log.error("schedule_record_unreadable", key=entry.key, error=str(error))
        return found

    async def progress(self, name: str) -> Kept | None:
        """How far one has got.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await self._ask(self._cells.read(_seen(name)), f"how far the schedule {name} is")
        return None if entry is None else _kept(entry)

    async def advance(self, name: str, progress: Progress, expect: int | None) -> Kept | None:
        """Write how far a schedule has got, over the revision that was read; None makes its first record.

        Raises:
            Unavailable: nobody said whether it is written.
        """
        key, value = _seen(name), msgspec.json.encode(progress)
        write = self._cells.create(key, value) if expect is None else self._cells.replace(key, value, expect=expect)
        result = await self._ask(write, f"writing how far the schedule {name} is")
        if not landed(result, f"nobody said how far the schedule {name} is"):
            return None
        return await self.progress(name)

    async def forget(self, name: str, expect: int) -> bool:
        """Remove what is recorded of a schedule that left the document.

        Raises:
            Unavailable: nobody said whether it is gone.
        """
        result = await self._ask(self._cells.remove(_seen(name), expect=expect), f"forgetting the schedule {name}")
        return landed(result, f"the schedule {name} may be recorded still")

    async def claim(self, name: str, fire: Fire) -> bool:
        """Decide on an instant, before all others. Only True lets the caller go on as if it were the one.

        Raises:
            Unavailable: nobody said. It counts as not ours, and is read the next time.
        """
        write = self._cells.create(_key(name, fire.instant), msgspec.json.encode(fire), ttl_s=KEPT_S)
        result = await self._ask(write, f"claiming {label(fire.instant)} of the schedule {name}")
        return landed(result, f"nobody said whether {label(fire.instant)} of the schedule {name} is claimed")

    async def at(self, name: str, instant: datetime) -> Recorded | None:
        """What is recorded of an instant.

        Raises:
            Unavailable: nobody answered.
        """
        entry = await self._ask(self._cells.read(_key(name, instant)), f"what became of {label(instant)} of {name}")
        return None if entry is None else _recorded(entry)

    async def of(self, name: str) -> Sequence[Recorded]:
        """What is recorded of a schedule's instants, oldest first.

        Raises:
            Unavailable: nobody answered.
        """
        return [
            _recorded(entry) for entry in await self._ask(self._cells.list(f"fire.{name}."), f"what became of {name}")
        ]

    async def finish(self, name: str, fire: Fire, expect: int) -> bool:
        """Write the end of an instant that was claimed. False: somebody else did.

        Raises:
            Unavailable: nobody said.
        """
        value = msgspec.json.encode(fire)
        write = self._cells.replace(_key(name, fire.instant), value, expect=expect, ttl_s=KEPT_S)
        result = await self._ask(write, f"the end of {label(fire.instant)} of {name}")
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
        return Kept(decode(entry.value, Progress), entry.revision)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record {entry.key} cannot be read: {error}") from error


def _recorded(entry: Entry) -> Recorded:
    try:
        return Recorded(decode(entry.value, Fire), entry.revision, entry.written_at)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record {entry.key} cannot be read: {error}") from error
