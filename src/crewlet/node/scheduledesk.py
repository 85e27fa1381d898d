"""What a node shows of the company's schedules. Every node answers alike, from the document and the shared records."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from crewlet.company.model import Company
from crewlet.company.rules import is_handle
from crewlet.duties.fires import Fire, Fires
from crewlet.ports.errors import CrewletError


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """One schedule.

    Attributes:
        rule: when it is due, in one line.
        next_at: when it is due next, by the store's clock; what is due before was dealt with, also where the clock was
            set back.
        last_at: the newest instant that was dealt with, and its `outcome` and `reason`.
        skipped_catchup: how many instants went by together, not fired, when that happened last, from `skipped_from` on
            and before `skipped_before`.
    """

    name: str
    seat: str
    rule: str
    next_at: datetime | None = None
    last_at: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    skipped_catchup: int | None = None
    skipped_from: datetime | None = None
    skipped_before: datetime | None = None
    skipped_reason: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulesSnapshot:
    """Every schedule of the document in force here."""

    schedules: tuple[ScheduleSnapshot, ...]


@dataclass(frozen=True, slots=True)
class FireSnapshot:
    """What became of one instant.

    Attributes:
        outcome: as `crewlet.duties.fires.Fire` has it, with its `reason`.
        by: the process that decided.
        skipped_catchup: how many instants went by before it without a record of their own, from `skipped_from` on, and
            why.
    """

    instant: datetime
    outcome: str
    reason: str | None = None
    by: str | None = None
    skipped_catchup: int | None = None
    skipped_from: datetime | None = None
    skipped_reason: str | None = None


@dataclass(frozen=True, slots=True)
class FiresSnapshot:
    """The instants of one schedule in the last two days, newest first."""

    schedule: str
    fires: tuple[FireSnapshot, ...]


class UnknownSchedule(CrewletError):
    """Neither the document nor the records know it."""


class ScheduleDesk:
    """Reads schedules."""

    def __init__(self, company: Callable[[], Company], fires: Fires) -> None:
        self._company = company
        self._fires = fires

    async def list(self) -> SchedulesSnapshot:
        """Every schedule, when it is due next and what became of the last time.

        Raises:
            Unavailable: the records cannot be read.
        """
        schedules = self._company().schedules
        if not schedules:
            return SchedulesSnapshot(())
        known, now = await self._fires.all(), await self._fires.now()
        rows: list[ScheduleSnapshot] = []
        for schedule in schedules:
            kept = known.get(schedule.name)
            last = kept.progress.last if kept is not None else None
            skipped = kept.progress.overtaken if kept is not None else None
            rows.append(
                ScheduleSnapshot(
                    name=schedule.name,
                    seat=schedule.seat,
                    rule=schedule.rule,
                    next_at=schedule.after(max(now, kept.progress.settled) if kept is not None else now),
                    last_at=last.instant if last is not None else None,
                    outcome=last.state if last is not None else None,
                    reason=last.reason or None if last is not None else None,
                    skipped_catchup=skipped.count if skipped is not None else None,
                    skipped_from=skipped.first if skipped is not None else None,
                    skipped_before=skipped.before if skipped is not None else None,
                    skipped_reason=skipped.reason if skipped is not None else None,
                )
            )
        return SchedulesSnapshot(tuple(rows))

    async def history(self, name: str, *, limit: int = 50) -> FiresSnapshot:
        """What became of the instants of a schedule in the last two days, newest first.

        Raises:
            UnknownSchedule: neither the document nor the records know it.
            Unavailable: the records cannot be read.
        """
        names = [schedule.name for schedule in self._company().schedules]
        recorded = await self._fires.of(name) if is_handle(name) else ()
        if name not in names and not recorded:
            raise UnknownSchedule(
                f"there is no schedule {name!r}" + (f"; there are {', '.join(names)}" if names else "")
            )
        return FiresSnapshot(name, tuple(_shown(each.fire) for each in reversed(recorded[-limit:])))


def _shown(fire: Fire) -> FireSnapshot:
    skipped = fire.overtaken
    return FireSnapshot(
        instant=fire.instant,
        outcome=fire.state,
        reason=fire.reason or None,
        by=fire.by or None,
        skipped_catchup=skipped.count if skipped is not None else None,
        skipped_from=skipped.first if skipped is not None else None,
        skipped_reason=skipped.reason if skipped is not None else None,
    )
