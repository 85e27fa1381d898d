"""Renewing every lease of this process, side by side, and telling what each answer means.

Each seat's proof counts from its own sending. A store that does not answer is asked again within the same beat, as an
election passes sooner than a beat; a seat that waits for its answer keeps no other from its next renewal.
"""

import asyncio
from collections.abc import Callable

import structlog

from crewlet.kit.backoff import Backoff
from crewlet.kit.beats import Beats
from crewlet.ports.errors import Unavailable
from crewlet.seats.context import HostContext
from crewlet.seats.handoff import Handoff
from crewlet.seats.presence import Presence
from crewlet.seats.tenure import Phase, Tenure

_log = structlog.get_logger()

_INSTANT_S = 0.001  # less is rounding, and no sleep would move a clock by it


class Heartbeat:
    """The loop that keeps what is held.

    Args:
        beats: where the loop says that it turns. A pass is as old as the renewal that it waits for, so that it proves
            that renewing works, not merely that the loop runs.
        on_beat: called at each turn of the loop, but not while a renewal has been in flight for a TTL.
    """

    def __init__(
        self,
        context: HostContext,
        handoff: Handoff,
        presence: Presence,
        beats: Beats,
        on_beat: Callable[[], None],
    ) -> None:
        self._context = context
        self._handoff = handoff
        self._presence = presence
        self._beat = beats.of("heartbeat")
        self._beat_s = beats.beat_s
        self._on_beat = on_beat
        # Of each renewal in flight, since when; the oldest first.
        self._waiting: dict[Tenure, float] = {}
        self._presence_renewal: asyncio.Task[None] | None = None
        self._give_backs: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Beat for ever."""
        clock = self._context.clock
        try:
            while True:
                next_at = clock.elapsed() + self._context.period_s
                self._beat.stamp(self._turned_at())
                try:
                    self.beat(next_at)
                except Exception:  # noqa: BLE001 -- without this loop every lease here lapses
                    _log.exception("heartbeat_broke")
                await self._rest(next_at)
        finally:
            self._beat.stop()

    async def _rest(self, until: float) -> None:
        """Wait for the next pass, saying all the while that the loop turns, and since when it waits for an answer."""
        clock = self._context.clock
        while (left_s := until - clock.elapsed()) > _INSTANT_S:
            self._beat.stamp(self._turned_at())
            await clock.sleep(min(left_s, self._beat_s))

    def beat(self, until: float) -> None:
        """Begin to renew everything once, till that instant, and retry what failed to end."""
        context = self._context
        if context.clock.elapsed() - self._turned_at() <= context.ttl_s:
            context.tell("on_beat", self._on_beat)
        for tenure in context.tenures.all():
            if tenure.is_renewable and tenure not in self._waiting:
                self._waiting[tenure] = context.clock.elapsed()
                context.tasks.start(self._renew(tenure, until), f"renewal of {tenure.handle}")
            if tenure.phase is Phase.UNDEAD:
                context.tasks.start(self._handoff.retry(tenure), f"teardown of {tenure.handle}")
        if self._presence_renewal is None or self._presence_renewal.done():
            self._presence_renewal = context.tasks.start(self._presence.keep(until), "presence")
        if context.give_backs and (self._give_backs is None or self._give_backs.done()):
            self._give_backs = context.tasks.start(self._handoff.settle_give_backs(), "give-backs")

    async def _renew(self, tenure: Tenure, until: float) -> None:
        try:
            await self._ask(tenure, until)
        finally:
            del self._waiting[tenure]

    async def _ask(self, tenure: Tenure, until: float) -> None:
        """Renew one lease, again while nobody answers, till that instant."""
        context, term = self._context, tenure.term
        delays = Backoff(0.1, 1.0)
        while tenure.is_renewable:
            sent_at = context.clock.elapsed()
            try:
                is_ours = await context.leases.renew(term.resource, term.owner, term.epoch)
            except Unavailable as error:
                self._failed(tenure, str(error))
            else:
                self._answered(tenure, sent_at, is_ours=is_ours)
                return
            delay = delays.next_s() * (0.75 + 0.5 * context.entropy.random())
            if context.clock.elapsed() + delay >= until:
                return
            await context.clock.sleep(delay)

    def _failed(self, tenure: Tenure, error: str) -> None:
        context = self._context
        if not tenure.admission.fail():
            return
        _log.warning("seat_renewal_failed", seat=tenure.handle, epoch=tenure.term.epoch, error=error)
        if tenure.phase is Phase.HELD:
            context.tell("on_admission", lambda: context.hooks.on_admission(tenure.handle, False))

    def _answered(self, tenure: Tenure, sent_at: float, *, is_ours: bool) -> None:
        context = self._context
        if not context.tenures.is_current(tenure):
            # Dropped while it was asked, and its lease is on its way back. Another tenure of the seat may stand here.
            return
        if not is_ours:
            if not tenure.is_giving_back:
                self._handoff.lose(tenure)
            return
        if context.can_lapse and context.clock.elapsed() >= tenure.good_until:
            return  # too late to count: the lapse timer ends the tenure, and its lease goes back with it
        self._renewed(tenure, sent_at)

    def _renewed(self, tenure: Tenure, sent_at: float) -> None:
        context = self._context
        tenure.proven_at = max(tenure.proven_at, sent_at)
        tenure.is_stale_told = False
        if context.can_lapse:
            tenure.fence.extend(sent_at + context.ttl_s)
            context.tenures.publish()
        is_held = tenure.phase is Phase.HELD and not tenure.is_lapsing
        if is_held or tenure.phase is Phase.LEAVING:
            context.tell("on_renewed", lambda: context.hooks.on_renewed(tenure.term, tenure.good_until))
        may_admit = is_held and context.may_take
        if may_admit and tenure.admission.renew(is_busy=context.is_busy(tenure.handle)):
            context.tell("on_admission", lambda: context.hooks.on_admission(tenure.handle, True))
        elif tenure.phase is Phase.ACQUIRING:
            tenure.admission.recover()

    def _turned_at(self) -> float:
        """Since when the oldest renewal has been waited for; now, when none is."""
        context = self._context
        waited_for = (since for tenure, since in self._waiting.items() if context.tenures.is_current(tenure))
        return next(waited_for, context.clock.elapsed())
