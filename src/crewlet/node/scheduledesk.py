"""What a node shows of the company's schedules. Every node answers alike, from the document and the shared records."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from crewlet.company.model import Company
from crewlet.duties.fires import Fires


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """One schedule.

    Attributes:
        rule: when it is due, in one line.
        next_at: when it is due next, by the store's clock.
        last_at: the newest instant that was dealt with, and its `outcome` and `reason`.
        missed: how many instants went by together, not fired, when that happened last; `missed_before` tells when.
    """

    name: str
    seat: str
    rule: str
    next_at: datetime | None = None
    last_at: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    missed: int | None = None
    missed_before: datetime | None = None
    missed_reason: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulesSnapshot:
    """Every schedule of the document in force here."""

    schedules: tuple[ScheduleSnapshot, ...]


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
            missed = kept.progress.overtaken if kept is not None else None
            rows.append(
                ScheduleSnapshot(
                    name=schedule.name,
                    seat=schedule.seat,
                    rule=schedule.rule,
                    next_at=schedule.after(now),
                    last_at=last.instant if last is not None else None,
                    outcome=last.state if last is not None else None,
                    reason=last.reason or None if last is not None else None,
                    missed=missed.count if missed is not None else None,
                    missed_before=missed.before if missed is not None else None,
                    missed_reason=missed.reason if missed is not None else None,
                )
            )
        return SchedulesSnapshot(tuple(rows))
