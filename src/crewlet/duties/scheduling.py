"""The duty `scheduler`: sends the seats the mail of the company's schedules when it is due, by the store's clock.

Of the instants that went by since the last tick only the newest is fired, if it is not too old. It is claimed before
its mail leaves, and a claim without a clear yes fires nothing: the next tick reads what came of it. Between the claim
and the end a crash does no harm, since whoever comes next sends the mail again under the same id.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from crewlet.company.instants import Schedule
from crewlet.company.model import Company
from crewlet.duties.fires import CEILING_S, Fire, Fires, Kept, Overtaken, Progress, mail_id
from crewlet.duties.frame import Duty, Turned
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import Pauses
from crewlet.ports.errors import CrewletError, Unavailable

EVERY_S = 5.0
TTL_S = 30.0
REWRITTEN_AFTER = timedelta(days=1)
"""A schedule that is seldom due says so often that its record does not age out."""

_LATE = timedelta(minutes=1)
_CEILING = timedelta(seconds=CEILING_S)
_TOO_OLD = f"it was more than {CEILING_S / 3600:g} h ago"

_log = structlog.get_logger()


@dataclass(slots=True)
class _Planned:
    schedule: Schedule
    look_at: datetime


class Scheduler:
    """One tick after the other. What it remembers only tells when to look; what is true stands in the store.

    Args:
        company: the document in force.
        owner: this process, for the records.
    """

    def __init__(
        self, company: Callable[[], Company], fires: Fires, outbox: Outbox, pauses: Pauses, *, owner: str
    ) -> None:
        self._company = company
        self._fires = fires
        self._outbox = outbox
        self._pauses = pauses
        self._owner = owner
        self._seen: Company | None = None
        self._plan: dict[str, _Planned] = {}

    def duty(self) -> Duty:
        purpose = "sends the mail of the company's schedules"
        return Duty(
            "scheduler", purpose, EVERY_S, TTL_S, self.tick, lambda: bool(self._company().schedules or self._plan)
        )

    async def tick(self, turned: Turned) -> str:
        """Fire what is due; what fails does not keep the rest, and is looked at again in the next tick.

        Raises:
            Unavailable: some of it could not be done.
        """
        company = self._company()
        if company is not self._seen:
            await self._take(company, turned)
            self._seen = company
        if not self._plan:
            return ""
        now = await self._fires.now()
        due = [planned for planned in self._plan.values() if planned.look_at <= now]
        if not due:
            return ""
        paused = await self._pauses.in_force()
        done: list[str] = []
        failed: list[str] = []
        for planned in due:
            turned()
            name = planned.schedule.name
            try:
                kept, fire = await self._settle(planned.schedule, now, planned.schedule.seat in paused)
                planned.look_at = _next_look(planned.schedule, kept)
                done += [f"{name}: {fire.state}"] if fire is not None else []
            except CrewletError as error:
                failed.append(f"{name}: {error}")
        if failed:
            raise Unavailable("; ".join([*failed, *done]))
        return ", ".join(done)

    async def _take(self, company: Company, turned: Turned) -> None:
        """Begin what is new in the document, from now on, and forget what left it."""
        if not company.schedules and self._seen is None:
            return
        known = await self._fires.all()
        now = await self._fires.now()
        names = {schedule.name for schedule in company.schedules}
        for name, kept in known.items():
            if name not in names:
                turned()
                await self._fires.forget(name, kept.revision)
                _log.info("schedule_forgotten", schedule=name)
        plan: dict[str, _Planned] = {}
        for schedule in company.schedules:
            kept = known.get(schedule.name)
            if kept is None or kept.progress.rule != schedule.rule:
                turned()
                kept = await self._begin(schedule, kept, now)
            plan[schedule.name] = _Planned(schedule, _next_look(schedule, kept))
        self._plan = plan

    async def _begin(self, schedule: Schedule, kept: Kept | None, now: datetime) -> Kept:
        """A schedule that is new, or due at other times than before: nothing from before now is caught up."""
        if kept is not None:
            await self._finish_left(schedule, now)
        last = kept.progress.last if kept is not None else None
        progress = Progress(schedule.rule, max(now, kept.progress.settled) if kept is not None else now, last)
        begun = await self._fires.advance(schedule.name, progress, kept.revision if kept is not None else None)
        if begun is None:
            raise Unavailable(f"the schedule {schedule.name} was changed by another node at this moment")
        _log.info("schedule_begun", schedule=schedule.name, rule=schedule.rule)
        return begun

    async def _settle(self, schedule: Schedule, now: datetime, is_paused: bool) -> tuple[Kept, Fire | None]:
        """Deal with every instant up to now. Returns how far it is then, and the fire that was decided here."""
        kept = await self._fires.progress(schedule.name)
        if kept is None or kept.progress.rule != schedule.rule:
            return await self._begin(schedule, kept, now), None
        settled = kept.progress.settled
        newest = schedule.newest(settled, now)
        if newest is None:
            quiet = Progress(schedule.rule, max(settled, now), kept.progress.last, kept.progress.overtaken)
            return await self._advance(schedule, quiet, kept)
        overtaken = kept.progress.overtaken
        count = schedule.count(settled, newest)
        if count:
            await self._finish_left(schedule, now, before=newest)
            first = schedule.after(settled) or newest
            overtaken = Overtaken(count, first, newest, "a later one was due when the schedules were looked at again")
        fire = await self._decide(schedule, newest, now, is_paused)
        if count and overtaken is not None:
            _log.warning("schedule_missed", schedule=schedule.name, instants=count, reason=overtaken.reason)
        return await self._advance(schedule, Progress(schedule.rule, newest, fire, overtaken), kept, fire)

    async def _advance(
        self, schedule: Schedule, progress: Progress, kept: Kept, fire: Fire | None = None
    ) -> tuple[Kept, Fire | None]:
        advanced = await self._fires.advance(schedule.name, progress, kept.revision)
        if advanced is None:  # another node did the duty meanwhile, and knows better
            raise Unavailable("another node dealt with it at this moment")
        return advanced, fire

    async def _decide(self, schedule: Schedule, instant: datetime, now: datetime, is_paused: bool) -> Fire:
        """Claim an instant and see it through, or what another began."""
        late = now - instant
        if late > _CEILING:
            fire = Fire(instant, "missed", _TOO_OLD, self._owner)
        elif is_paused:
            fire = Fire(instant, "skipped_paused", f"the seat {schedule.seat} was paused", self._owner)
        else:
            reason = f"caught up {late.total_seconds():.0f} s late" if late > _LATE else ""
            fire = Fire(instant, "claimed", reason, self._owner)
        if await self._fires.claim(schedule.name, fire) and fire.state != "claimed":
            _tell(schedule, fire)
            return fire
        found = await self._fires.at(schedule.name, instant)
        if found is None:
            raise Unavailable("the record of its fire is not there")
        return await self._finish(schedule, *found, now)

    async def _finish_left(self, schedule: Schedule, now: datetime, *, before: datetime | None = None) -> None:
        for fire, revision in await self._fires.unfinished(schedule.name):
            if before is None or fire.instant < before:
                await self._finish(schedule, fire, revision, now)

    async def _finish(self, schedule: Schedule, fire: Fire, revision: int, now: datetime) -> Fire:
        """Send the mail of an instant that was claimed, whoever claimed it, and say so."""
        if fire.state != "claimed":
            return fire
        if now - fire.instant > _CEILING:
            ended = Fire(fire.instant, "missed", f"it was claimed and not finished, and {_TOO_OLD}", fire.by)
        else:
            await self._outbox.post(self._mail(schedule, fire.instant))
            ended = Fire(fire.instant, "fired", fire.reason, fire.by)
        if await self._fires.finish(schedule.name, ended, revision):
            _tell(schedule, ended)
        return ended

    def _mail(self, schedule: Schedule, instant: datetime) -> Envelope:
        return Envelope(
            id=mail_id(schedule.name, instant),
            type="task_assigned",
            timestamp=self._outbox.timestamp(),
            source="program",
            to=schedule.seat,
            subject=f"Schedule {schedule.name}",
            body=schedule.message,
            payload={"schedule": schedule.name, "instant": instant.isoformat()},
        )


def _next_look(schedule: Schedule, kept: Kept) -> datetime:
    settled = kept.progress.settled
    following = schedule.after(settled)
    return min(following, settled + REWRITTEN_AFTER) if following is not None else settled + REWRITTEN_AFTER


def _tell(schedule: Schedule, fire: Fire) -> None:
    say = _log.warning if fire.state == "missed" else _log.info
    say(f"schedule_{fire.state}", schedule=schedule.name, seat=schedule.seat, instant=fire.instant.isoformat(),
        reason=fire.reason)  # fmt: skip
