"""Bugs of schedules: of what becomes of an instant at which one is due."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from crewlet.company.instants import Schedule
from crewlet.company.model import Company
from crewlet.duties import scheduling
from crewlet.duties.fires import Fire, Fires, Kept
from crewlet.duties.firing import Firing
from crewlet.duties.scheduling import Scheduler
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.testing.sim.mutants.planting import plant, put


@plant("instants passed by in silence")
def _silent(stack: ExitStack) -> None:
    def between(schedule: Schedule, settled: datetime, newest: datetime) -> None:
        del schedule, settled, newest

    put(stack, scheduling, "_between", between)


@plant("mail before its claim")
def _before_claim(stack: ExitStack) -> None:
    async def decide(self: Firing, schedule: Schedule, instant: datetime, *args: Any, **kwargs: Any) -> Fire:
        await self._outbox.post(self._mail(schedule, Fire(instant, "claimed", seat=schedule.seat)))
        return await original(self, schedule, instant, *args, **kwargs)

    original = put(stack, Firing, "decide", decide)


@plant("a fire sent under a name of its sender")
def _own_id(stack: ExitStack) -> None:
    def mail(self: Firing, schedule: Schedule, fire: Fire) -> Envelope:
        envelope = original(self, schedule, fire)
        return msgspec.structs.replace(envelope, id=f"{envelope.id}-{self._owner.replace(':', '-')}")

    original = put(stack, Firing, "_mail", mail)


@plant("a fire told and not sent")
def _not_sent(stack: ExitStack) -> None:
    async def post(self: Outbox, envelope: Envelope, **kwargs: Any) -> Any:
        return None if "schedule" in envelope.payload else await original(self, envelope, **kwargs)

    original = put(stack, Outbox, "post", post)


@plant("a claimed fire goes to the seat of today")
def _seat_of_today(stack: ExitStack) -> None:
    def mail(self: Firing, schedule: Schedule, fire: Fire) -> Envelope:
        return original(self, schedule, msgspec.structs.replace(fire, seat=""))

    original = put(stack, Firing, "_mail", mail)


@plant("schedules begun anew when the duty moves")
def _begun_anew(stack: ExitStack) -> None:
    async def all_known(self: Fires) -> Mapping[str, Kept]:
        known, now = await original(self), await self.now()
        for name, kept in known.items():
            await self.advance(name, msgspec.structs.replace(kept.progress, settled=now), kept.revision)
        return await original(self)

    original = put(stack, Fires, "all", all_known)


@plant("schedules of the document before go on")
def _deaf(stack: ExitStack) -> None:
    async def take(self: Scheduler, company: Company) -> None:
        if self._plan:
            self._seen = company
        else:
            await original(self, company)

    original = put(stack, Scheduler, "_take", take)


@plant("schedules looked at ahead of time")
def _early(stack: ExitStack) -> None:
    async def now(self: Fires) -> datetime:
        return await original(self) + timedelta(seconds=7)

    original = put(stack, Fires, "now", now)


@dataclass(frozen=True, slots=True)
class _EachOne(Schedule):
    def newest(self, after: datetime, until: datetime) -> datetime | None:
        first = self.after(after)
        return first if first is not None and first <= until else None


@plant("each instant that went by is fired")
def _each_fired(stack: ExitStack) -> None:
    async def settle(self: Scheduler, schedule: Schedule, *args: Any) -> Any:
        return await original(self, _EachOne(**asdict(schedule)), *args)

    original = put(stack, Scheduler, "_settle", settle)


def _taken_as(stack: ExitStack, *, is_paused: bool) -> None:
    async def settle(self: Scheduler, schedule: Schedule, now: datetime, _: bool | None) -> Any:
        return await original(self, schedule, now, is_paused)

    original = put(stack, Scheduler, "_settle", settle)


@plant("fires for paused seats")
def _paused_fired(stack: ExitStack) -> None:
    _taken_as(stack, is_paused=False)


@plant("fires skipped as if all were paused")
def _all_skipped(stack: ExitStack) -> None:
    _taken_as(stack, is_paused=True)


@plant("claimed fires left behind")
def _left_behind(stack: ExitStack) -> None:
    async def finish_left(self: Firing, schedule: Schedule, settled: datetime, *_: Any) -> datetime:
        return settled

    put(stack, Firing, "finish_left", finish_left)
