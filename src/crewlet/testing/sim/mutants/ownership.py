"""Bugs of ownership: of taking seats, giving them back, and the fence."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from crewlet.ports.errors import Fenced
from crewlet.seats import admission, allotment
from crewlet.seats.claiming import Claimer
from crewlet.seats.fence import SeatFence
from crewlet.seats.handoff import Handoff
from crewlet.seats.host import SeatHost
from crewlet.seats.lapse import LapseTimers
from crewlet.seats.presence import Presence
from crewlet.testing.sim.mutants.planting import plant, put


@plant("release before detach")
def _release_before_detach(stack: ExitStack) -> None:
    async def take_down(self: Handoff, tenure: Any, leaving: Any) -> bool:
        await self._give_back(tenure)
        return await original(self, tenure, leaving)

    original = put(stack, Handoff, "_take_down", take_down)


@plant("lease kept at a release")
def _lease_kept(stack: ExitStack) -> None:
    async def give_back(self: Handoff, tenure: Any) -> None:
        return

    put(stack, Handoff, "_give_back", give_back)


@plant("membership instead of freshness")
def _membership(stack: ExitStack) -> None:
    def is_fresh(now: float, proven_at: float, window_s: float) -> bool:
        return True

    put(stack, admission, "is_fresh", is_fresh)


@plant("fence on membership")
def _fence_on_membership(stack: ExitStack) -> None:
    class MembershipFence:
        def __init__(self, host: SeatHost, fence: SeatFence, handle: str) -> None:
            self.term, self.good_until = fence.term, fence.good_until
            self._host, self._handle = host, handle

        def check(self) -> None:
            assert self._host._context.tenures.get(self._handle) is not None or True

        def on_close(self, call: Callable[[str], None]) -> Callable[[], None]:
            return lambda: None

    def fence(self: SeatHost, handle: str) -> Any:
        real = original(self, handle)
        return None if real is None else MembershipFence(self, real, handle)

    original = put(stack, SeatHost, "fence", fence)


@plant("no lapse timer")
def _no_lapse_timer(stack: ExitStack) -> None:
    def watch(self: LapseTimers, tenure: Any) -> None:
        return

    put(stack, LapseTimers, "watch", watch)


@plant("fence without a clock")
def _fence_without_clock(stack: ExitStack) -> None:
    def notice(self: SeatFence) -> None:
        return

    def check(self: SeatFence) -> None:
        if self._closed.is_set:
            raise Fenced("closed")

    put(stack, SeatFence, "_notice_lapse", notice)
    put(stack, SeatFence, "check", check)


@plant("stuck seat not charged")
def _stuck_not_charged(stack: ExitStack) -> None:
    def room(plan: Any, running: Any, stuck: Any = ()) -> Any:
        return original(plan, running, ())

    original = put(stack, allotment, "room", room)


@plant("no bound by the share")
def _no_share(stack: ExitStack) -> None:
    def room(plan: Any, running: Any, stuck: Any = ()) -> Any:
        return {placement: count + 1 for placement, count in original(plan, running, stuck).items()}

    original = put(stack, allotment, "room", room)


@plant("presence kept at a drain")
def _presence_kept(stack: ExitStack) -> None:
    async def give_up(self: Presence) -> None:
        return

    put(stack, Presence, "give_up", give_up)


@plant("acquire failure not taken down")
def _not_taken_down(stack: ExitStack) -> None:
    async def establish(self: Handoff, tenure: Any) -> bool:
        try:
            await self._context.hooks.on_acquire(tenure.term, tenure.good_until)
        except Exception:  # noqa: BLE001 -- the bug
            return False
        return await original(self, tenure)

    original = put(stack, Handoff, "_establish", establish)


@plant("lower count not advertised")
def _count_kept(stack: ExitStack) -> None:
    async def advertise(self: Presence) -> None:
        return

    put(stack, Presence, "advertise", advertise)


@plant("one claim a pass")
def _few_claims(stack: ExitStack) -> None:
    def claim(self: Claimer, *args: Any, **kwargs: Any) -> Any:
        candidates, limit, *rest = args
        return original(self, candidates, min(limit, 1), *rest, **kwargs)

    original = put(stack, Claimer, "claim", claim)
