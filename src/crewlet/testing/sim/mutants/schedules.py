"""Bugs of schedules: of what becomes of an instant at which one is due."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from contextlib import ExitStack
from datetime import datetime
from typing import Any

from crewlet.company.instants import Schedule
from crewlet.duties import scheduling
from crewlet.duties.fires import Fire
from crewlet.duties.firing import Firing
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
