"""Bugs of what a node tells its parent and its watchdog: when it may be ended, and that it turns."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from contextlib import ExitStack
from typing import Any

from crewlet.duties.frame import Duties
from crewlet.seats.drain import Drain
from crewlet.seats.tenure import Phase, Tenures
from crewlet.testing.sim.mutants.planting import plant, put


@plant("stopped seats keep the deadline")
def _stopped_keep(stack: ExitStack) -> None:
    def publish(self: Tenures) -> None:
        self._deadline.good_until(min((each.good_until for each in self.all()), default=None))

    put(stack, Tenures, "publish", publish)


@plant("leaving seats left out of the deadline")
def _leaving_left_out(stack: ExitStack) -> None:
    def publish(self: Tenures) -> None:
        instants = [each.good_until for each in self.all() if each.phase is Phase.HELD and not each.is_stopped]
        self._deadline.good_until(min(instants, default=None))

    put(stack, Tenures, "publish", publish)


@plant("no beat while a duty rests")
def _no_beat(stack: ExitStack) -> None:
    async def rest(self: Duties, watched: Any, until: float) -> None:
        while (left_s := until - self._clock.elapsed()) > 0 and not self._is_stopping:
            await self._clock.sleep(left_s)

    put(stack, Duties, "_rest", rest)


@plant("unproven seats left alone at a drain")
def _left_alone(stack: ExitStack) -> None:
    async def end_left(self: Drain) -> None:
        return

    put(stack, Drain, "_end_left", end_left)
