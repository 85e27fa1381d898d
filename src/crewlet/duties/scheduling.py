"""The duty `scheduler`: sends the seats the mail of the company's schedules when it is due, by the store's clock.

Of the instants that went by since the last tick only the newest is fired, if it is not too old; its record names the
others. While live nodes have different schedules, nothing of a schedule that only the other document has, or has at
other times, is touched: which of two documents is the newer, nobody can say.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog
from cronsim import CronSimError

from crewlet.company.instants import Schedule
from crewlet.company.model import Company
from crewlet.duties.asking import Asking
from crewlet.duties.fires import Fire, Fires, Kept, Overtaken, Progress
from crewlet.duties.firing import Firing
from crewlet.duties.frame import Duty, Turned
from crewlet.mail.pauses import Pauses
from crewlet.ports.errors import CrewletError, Unavailable

EVERY_S = 5.0
TTL_S = 30.0
REWRITTEN_AFTER = timedelta(days=1)
"""A schedule that is seldom due says so often that its record does not age out."""
SET_BACK_AT_MOST = timedelta(days=1)
"""A clock that was set back by no more is waited for, until it is as late again."""
SIDE_BY_SIDE: Final = 32
"""So many schedules are dealt with at a time."""

_OVERTAKEN = "a later one was due when the schedules were looked at again"
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)

_log = structlog.get_logger()


@dataclass(slots=True)
class _Planned:
    schedule: Schedule
    look_at: datetime


class Scheduler:
    """One tick after the other. What it remembers only tells when to look; what is true stands in the store.

    Args:
        company: the document in force.
        ask: through which all of it asks the store and the broker.
        agree: raises Unavailable unless every live node has the same schedules, due at the same times.
    """

    def __init__(
        self,
        company: Callable[[], Company],
        fires: Fires,
        firing: Firing,
        pauses: Pauses,
        ask: Asking,
        agree: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._company = company
        self._fires = fires
        self._firing = firing
        self._pauses = pauses
        self._ask = ask
        self._agree = agree
        self._seen: Company | None = None
        self._plan: dict[str, _Planned] = {}
        self._waiting: list[str] = []

    def duty(self) -> Duty:
        return Duty(
            "scheduler", "sends the mail of the company's schedules", EVERY_S, TTL_S, self.tick, self._is_wanted
        )

    def _is_wanted(self) -> bool:
        # A document without schedules is looked at once: another one may have left some behind.
        company = self._company()
        return bool(company.schedules or company is not self._seen)

    async def tick(self, turned: Turned) -> str:
        """Fire what is due; what fails does not keep the rest, and is looked at again in the next tick.

        Raises:
            Unavailable: some of it could not be done.
        """
        self._ask.turned = turned
        company = self._company()
        if company is not self._seen:
            await self._take(company)
        failed = list(self._waiting)
        done = await self._settle_due(failed) if self._plan else []
        if failed:
            raise Unavailable("; ".join([*failed, *done]))
        return ", ".join(done)

    async def _settle_due(self, failed: list[str]) -> list[str]:
        """Deal with what is due, some of it side by side; returns what was done, and adds what was not."""
        now = await self._fires.now()
        # One that is due in more than a day waits for a clock that has been set back.
        due = [planned for planned in self._plan.values() if not now < planned.look_at <= now + REWRITTEN_AFTER]
        if not due:
            return []
        paused = await self._paused()
        done: list[str] = []

        async def settle(planned: _Planned) -> None:
            schedule = planned.schedule
            is_paused = schedule.seat in paused if paused is not None else None
            kept, fire = await self._settle(schedule, now, is_paused)
            planned.look_at = _next_look(schedule, kept)
            done.extend([f"{schedule.name}: {fire.state}"] if fire is not None else [])

        failed += await _side_by_side({planned.schedule.name: partial(settle, planned) for planned in due})
        return done

    async def _paused(self) -> Collection[str] | None:
        """The seats that people have paused; None where nobody says."""
        try:
            return await self._ask(self._pauses.in_force(), "which seats are paused")
        except Unavailable as error:
            _log.warning("schedule_pauses_unread", error=str(error))
            return None

    async def _take(self, company: Company) -> None:
        """Begin what is new in the document, from now on, and let go of what left it.

        What must wait, and all of it where the tick is cut short, is tried again in the next.
        """
        known = await self._fires.all()
        now = await self._fires.now()
        named = {schedule.name for schedule in company.schedules}
        gone = {name: kept for name, kept in known.items() if name not in named}
        changed = {
            one.name for one in company.schedules if one.name in known and not known[one.name].progress.is_of(one)
        }
        waiting = await self._disagreement([*sorted(changed), *gone]) if gone or changed else []
        is_agreed, plan = not waiting, dict[str, _Planned]()

        async def take(schedule: Schedule) -> None:
            kept = known.get(schedule.name)
            if kept is None or schedule.name in changed:
                kept = await self._begin(schedule, kept, now)
            plan[schedule.name] = _Planned(schedule, _next_look(schedule, kept))

        taken = {one.name: partial(take, one) for one in company.schedules if is_agreed or one.name not in changed}
        left = {name: partial(self._forget, name, kept, now) for name, kept in gone.items() if is_agreed}
        waiting += await _side_by_side({**taken, **left})
        self._plan, self._waiting, self._seen = plan, waiting, None if waiting else company

    async def _disagreement(self, names: Sequence[str]) -> list[str]:
        """Why these must wait; nothing where every live node has the same schedules."""
        try:
            await self._ask(self._agree(), "which schedules the other nodes have")
        except CrewletError as error:
            return [f"{', '.join(names)}: {error}"]
        return []

    async def _begin(self, schedule: Schedule, kept: Kept | None, now: datetime) -> Kept:
        """A schedule that is new, or due at other times than before: nothing from before now is caught up."""
        settled, last = now, None
        if kept is not None:
            before, last = kept.progress.settled, kept.progress.last
            reached = await self._firing.finish_left(schedule, before, _END_OF_TIME, now)
            await self._miss_rest(schedule.name, kept, reached, now, "it was no longer due then when it was looked at")
            settled = max(now, before)
        progress = Progress.of(schedule, settled, last, kept.progress.overtaken if kept is not None else None)
        begun = await self._fires.advance(schedule.name, progress, kept.revision if kept is not None else None)
        if begun is None:
            raise Unavailable(f"the schedule {schedule.name} was changed by another node at this moment")
        _log.info("schedule_begun", schedule=schedule.name, rule=schedule.rule)
        return begun

    async def _forget(self, name: str, kept: Kept, now: datetime) -> None:
        """A schedule that left the document: what is not fired by now never will be, and says so."""
        reason = "the schedule left the document"
        reached = await self._firing.end_left(name, kept.progress.settled, reason)
        await self._miss_rest(name, kept, reached, now, reason)
        if not await self._fires.forget(name, kept.revision):
            raise Unavailable("another node dealt with it at this moment")
        _log.info("schedule_forgotten", schedule=name)

    async def _miss_rest(self, name: str, kept: Kept, settled: datetime, now: datetime, reason: str) -> None:
        """Record as skipped what was due, as the document had it before, and was not dealt with."""
        before = kept.progress.schedule(name)
        try:
            newest = before.newest(settled, now)
            overtaken = _between(before, settled, newest) if newest is not None else None
        except (CronSimError, ValueError, KeyError) as error:  # of another build, or a zone that is unknown here
            _log.warning("schedule_rule_unreadable", schedule=name, rule=before.rule, error=str(error))
            return
        if newest is not None:
            await self._firing.miss(name, newest, reason, overtaken)

    async def _settle(self, schedule: Schedule, now: datetime, is_paused: bool | None) -> tuple[Kept, Fire | None]:
        """Deal with every instant up to now. Returns how far it is then, and the fire that was decided here."""
        kept = await self._fires.progress(schedule.name)
        if kept is None or not kept.progress.is_of(schedule):
            self._seen = None
            raise Unavailable("another node has it at other times, or not at all; it is looked at again")
        settled, last = kept.progress.settled, kept.progress.last
        if settled > now:
            if settled - now <= SET_BACK_AT_MOST:
                return kept, None  # a clock was set back: what is due until then was dealt with once
            _log.warning("schedule_clock_set_back", schedule=schedule.name, settled=settled.isoformat())
            return await self._advance(schedule, now, last, kept.progress.overtaken, kept), None
        newest = schedule.newest(settled, now)
        if newest is None:
            return await self._advance(schedule, now, last, kept.progress.overtaken, kept), None
        overtaken = _between(schedule, settled, newest)
        # Once more after some were overtaken: a claim of one of them may have been on its way.
        if overtaken is not None or (last is not None and last.overtaken is not None):
            settled = await self._firing.finish_left(schedule, settled, newest, now)
            overtaken = _between(schedule, settled, newest)
        fire = await self._firing.decide(schedule, newest, now, kept, is_paused=is_paused, overtaken=overtaken)
        if (passed := fire.overtaken) is not None:
            first, before = passed.first.isoformat(), passed.before.isoformat()
            _log.warning("schedule_skipped_catchup", schedule=schedule.name, instants=passed.count,
                         reason=passed.reason, first=first, before=before)  # fmt: skip
        newest_passed = fire.overtaken or kept.progress.overtaken
        return await self._advance(schedule, newest, fire, newest_passed, kept), fire

    async def _advance(
        self,
        schedule: Schedule,
        settled: datetime,
        last: Fire | None,
        overtaken: Overtaken | None,
        kept: Kept,
    ) -> Kept:
        progress = Progress.of(schedule, settled, last, overtaken)
        advanced = await self._fires.advance(schedule.name, progress, kept.revision)
        if advanced is None:  # another node did the duty meanwhile, and knows better
            raise Unavailable("another node dealt with it at this moment")
        return advanced


async def _side_by_side(works: Mapping[str, Callable[[], Awaitable[None]]]) -> list[str]:
    """Do all of it, so many at a time; returns what failed, by name."""
    gate, failed = asyncio.Semaphore(SIDE_BY_SIDE), list[str]()

    async def one(name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with gate:
                await work()
        except CrewletError as error:
            failed.append(f"{name}: {error}")

    for answer in await asyncio.gather(*(one(*each) for each in works.items()), return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
    return failed


def _between(schedule: Schedule, settled: datetime, newest: datetime) -> Overtaken | None:
    """What was due after `settled` and before `newest`."""
    count = schedule.count(settled, newest)
    first = schedule.after(settled) if count else None
    return Overtaken(count, first, newest, _OVERTAKEN) if first is not None else None


def _next_look(schedule: Schedule, kept: Kept) -> datetime:
    settled = kept.progress.settled
    following = schedule.after(settled)
    return min(following, settled + REWRITTEN_AFTER) if following is not None else settled + REWRITTEN_AFTER
