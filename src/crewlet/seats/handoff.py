"""Taking one seat and giving one back, each under the seat's lock.

A seat is either run here under its lease, or not at all. Whatever fails in between ends with the seat taken down and
its lease given back, or, where the teardown is not proven, with the lease kept.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

import structlog

from crewlet.ports.errors import Unavailable
from crewlet.ports.term import Term
from crewlet.seats.context import HostContext
from crewlet.seats.fence import SeatFence
from crewlet.seats.lapse import LapseTimers
from crewlet.seats.lease import ClaimResult, Granted, seat_resource
from crewlet.seats.news import Freed, Standing
from crewlet.seats.presence import Presence
from crewlet.seats.tenure import Leaving, Phase, Tenure

_log = structlog.get_logger()

_BUSY_POLL_S = 0.05
_ALARM_BEATS = 20
_TOGETHER_S = 0.01
"""How long news of a freed seat waits for those that are being taken down beside it."""
_HANGING_S = 10.0
"""A teardown that has not ended after this, and a heartbeat at least, is listed with those that failed."""
_COUNT_S = 1.0
"""How long it waits, and the release with it, for a store that does not take the lower count."""

Claimed = asyncio.Future[ClaimResult | None]
"""What the store said of a claim; None when it was not asked, or the lease went straight back."""


class Handoff:
    """The verbs of ownership of one seat.

    Args:
        on_lost: called with the handle and the reason when a seat that was won here is gone, proven.
        on_freed: called with the seats, together, whose release the store has acknowledged, once peers can read the
            lower count (or the store was asked to take it and did not answer).
    """

    def __init__(
        self,
        context: HostContext,
        presence: Presence,
        on_lost: Callable[[str, str], None],
        on_freed: Callable[[Freed], None],
    ) -> None:
        self._context = context
        self._on_freed = on_freed
        self._freed: list[str] = []
        self._taking_down = 0
        self._presence = presence
        self._on_lost = on_lost
        self._lapses = LapseTimers(context, self._stopped)

    # Taking

    async def take(self, handle: str, claimed: Claimed) -> bool:
        """Claim a seat and establish it. `claimed` is set as soon as the store has answered.

        Returns:
            True when the seat is established here.
        """
        self._context.claims[handle] = claimed
        try:
            async with self._context.lock(handle):
                tenure = await self._claim(handle, claimed)
                return tenure is not None and await self._establish(tenure)
        finally:
            if not claimed.done():
                self._answer(handle, claimed, None)

    async def _claim(self, handle: str, claimed: Claimed) -> Tenure | None:
        context, config = self._context, self._context.config
        if not context.may_take or context.tenures.get(handle) is not None:
            return None
        context.give_backs.pop(handle, None)
        sent_at = context.clock.elapsed()
        try:
            result = await context.leases.claim(
                seat_resource(handle), config.owner, preferred=config.node_id, gated=True
            )
        except Unavailable as error:
            self._answer(handle, claimed, error)
            return None
        if not isinstance(result, Granted):
            self._answer(handle, claimed, result)
            return None
        good_until = sent_at + context.ttl_s if context.can_lapse else math.inf
        fence = SeatFence(result.lease.term, context.clock, good_until)
        tenure = Tenure(handle, fence, sent_at)
        if not context.may_take or fence.is_closed:
            await self._give_back(tenure)
            await self._announce()
            return None
        context.tenures.add(tenure)
        self._lapses.watch(tenure)
        _log.info("seat_claimed", seat=handle, epoch=tenure.term.epoch)
        self._answer(handle, claimed, result)
        return tenure

    def _answer(self, handle: str, claimed: Claimed, answer: ClaimResult | Unavailable | None) -> None:
        # Forgotten before it is told: who is told counts the claims still on their way.
        self._context.claims.pop(handle, None)
        if isinstance(answer, Unavailable):
            claimed.set_exception(answer)
            claimed.exception()  # seen here, so that a caller who has gone leaves no complaint behind
        else:
            claimed.set_result(answer)

    async def _establish(self, tenure: Tenure) -> bool:
        """Run the acquire hook, and take down what it has begun if it fails, or the lease goes meanwhile."""
        context = self._context
        told_good_until = tenure.good_until
        hook = context.tasks.start(
            _as_coroutine(context.hooks.on_acquire(tenure.term, told_good_until)),
            f"acquiring {tenure.handle}",
            is_joined=True,
        )
        closing = context.tasks.start(tenure.fence.wait_closed(), f"watching the fence of {tenure.handle}")
        try:
            await asyncio.wait([hook, closing], return_when=asyncio.FIRST_COMPLETED)
            if not hook.done():
                hook.cancel()
                await asyncio.wait([hook])
        finally:
            hook.cancel()
            closing.cancel()
        failed = hook.cancelled() or hook.exception() is not None
        if failed or tenure.fence.is_closed:
            reason = "acquire_failed" if tenure.has_lease and not tenure.is_lapsing else "lease_lost"
            error = "cancelled" if hook.cancelled() else str(hook.exception() or "")
            _log.warning("seat_acquire_failed", seat=tenure.handle, epoch=tenure.term.epoch, error=error)
            self._rest(tenure.handle)
            tenure.fence.close(reason)
            await self._take_down(tenure, Leaving(reason, is_voluntary=False))
            return False
        tenure.phase = Phase.HELD
        _log.info("seat_attached", seat=tenure.handle, epoch=tenure.term.epoch)
        if tenure.good_until > told_good_until:
            context.tell("on_renewed", lambda: context.hooks.on_renewed(tenure.term, tenure.good_until))
        if tenure.admission.is_stopped:
            context.tell("on_admission", lambda: context.hooks.on_admission(tenure.handle, False))
        elif context.may_take and tenure.admission.reopen(is_busy=context.is_busy(tenure.handle)):
            # What came with the attachment was deferred, as no turn could start yet.
            context.tell("on_admission", lambda: context.hooks.on_admission(tenure.handle, True))
        context.tell("on_established", lambda: context.hooks.on_established(tenure.term))
        return True

    # Giving back

    async def release(self, tenure: Tenure, reason: str, *, is_voluntary: bool, wait_s: float = math.inf) -> bool:
        """Take a seat down and give its lease back.

        Args:
            wait_s: how long a voluntary release waits for the running handler. After that, or when the lease goes
                meanwhile, the fence closes and the release goes on as a fenced one.

        Returns:
            True when the seat is gone; False when that is not proven (it is undead from then on).
        """
        context = self._context
        if tenure.phase is Phase.HELD:
            tenure.phase = Phase.LEAVING
        async with context.lock(tenure.handle):
            if not context.tenures.is_current(tenure):
                return True
            if tenure.phase is Phase.UNDEAD:
                return await self._take_down(tenure, tenure.leaving or Leaving(reason, is_voluntary))
            tenure.phase = Phase.LEAVING
            if is_voluntary:
                context.tell("on_admission", lambda: context.hooks.on_admission(tenure.handle, False))
                is_voluntary = await self._handler_ended(tenure, wait_s)
            if not tenure.has_lease or tenure.is_lapsing:
                reason, is_voluntary = "lease_lost", False
            if not is_voluntary:
                tenure.fence.close(reason)
            return await self._take_down(tenure, Leaving(reason, is_voluntary))

    async def retry(self, tenure: Tenure) -> None:
        """Try a teardown again that has failed, and raise the alarm every so many heartbeats."""
        context = self._context
        tenure.undead_beats += 1
        if tenure.has_lease and tenure.undead_beats % _ALARM_BEATS == 0:
            elapsed_s = round(context.clock.elapsed() - tenure.undead_since, 1)
            _log.error("seat_still_unproven", seat=tenure.handle, attempts=tenure.undead_beats, elapsed_s=elapsed_s)
        lock = context.lock(tenure.handle)
        if lock.locked():
            return
        async with lock:
            if context.tenures.is_current(tenure) and tenure.phase is Phase.UNDEAD and tenure.leaving is not None:
                await self._take_down(tenure, tenure.leaving)

    async def stop_programs(self, tenure: Tenure) -> None:
        """End whatever works for a tenure, without grace and again until that is proven."""
        await self._lapses.stop(tenure)

    def lose(self, tenure: Tenure) -> None:
        """The store says that the lease is not ours: nothing of the tenure may act any more."""
        if not tenure.has_lease:
            return
        context = self._context
        tenure.has_lease = False
        tenure.fence.close("lease_lost")
        _log.warning("seat_lease_lost", seat=tenure.handle, epoch=tenure.term.epoch, phase=tenure.phase.value)
        if tenure.phase is Phase.HELD:
            self._drop(tenure)
        context.tenures.publish()

    async def settle_give_backs(self) -> None:
        """Ask again for releases that nobody answered, until each lease has lapsed by itself."""
        context = self._context
        for handle, (term, lapsed_at) in list(context.give_backs.items()):
            lock = context.lock(handle)
            if lock.locked():
                continue
            async with lock:
                if handle not in context.give_backs or context.tenures.get(handle) is not None:
                    continue
                try:
                    if context.clock.elapsed() < lapsed_at:
                        await self._release(term, handle)
                except Unavailable:
                    continue
                context.give_backs.pop(handle, None)
            await self._announce()

    def _stopped(self, tenure: Tenure) -> None:
        """Its lapse timer has ended everything of it. Only a new claim brings it back."""
        if tenure.phase is Phase.HELD:
            self._rest(tenure.handle)
            self._drop(tenure)

    def _drop(self, tenure: Tenure) -> None:
        context = self._context
        tenure.phase = Phase.LEAVING
        context.tasks.start(self.release(tenure, "lease_lost", is_voluntary=False), f"dropping {tenure.handle}")

    async def _handler_ended(self, tenure: Tenure, wait_s: float) -> bool:
        context = self._context
        give_up_at = context.clock.elapsed() + wait_s
        while context.is_busy(tenure.handle):
            if tenure.fence.is_closed or context.hurry.is_set or context.clock.elapsed() >= give_up_at:
                return False
            await context.clock.sleep(_BUSY_POLL_S)
        return not tenure.fence.is_closed

    async def _take_down(self, tenure: Tenure, leaving: Leaving) -> bool:
        """End a tenure and tell the peers. False: not proven."""
        self._taking_down += 1
        try:
            is_gone = await self._end(tenure, leaving)
        finally:
            self._taking_down -= 1
        if is_gone:
            await self._announce()
        return is_gone

    async def _end(self, tenure: Tenure, leaving: Leaving) -> bool:
        """Run the release hook; proven, give the lease back and forget the tenure. The seat's lock is held."""
        context = self._context
        tenure.leaving = leaving
        if tenure.phase is not Phase.UNDEAD:
            tenure.phase = Phase.LEAVING
        try:
            await self._run_release_hook(tenure, leaving)
        except Exception as error:  # noqa: BLE001 -- whatever it is, nothing is proven
            self._unproven(tenure, leaving, error)
            return False
        except asyncio.CancelledError as error:
            self._unproven(tenure, leaving, error)
            raise
        was_undead = tenure.phase is Phase.UNDEAD
        tenure.fence.close(leaving.reason)
        tenure.is_stopped = True
        context.tenures.publish()
        await self._give_back(tenure)
        context.tenures.remove(tenure)
        if was_undead:
            _log.info("seat_release_recovered", seat=tenure.handle, epoch=tenure.term.epoch, reason=leaving.reason)
        _log.info("seat_detached", seat=tenure.handle, epoch=tenure.term.epoch, reason=leaving.reason)
        if leaving.reason == "role_gone" and tenure.handle not in context.give_backs:
            _log.info("seat_released_role_gone", seat=tenure.handle, epoch=tenure.term.epoch)
        context.tell("on_lost", lambda: self._on_lost(tenure.handle, leaving.reason))
        return True

    async def _run_release_hook(self, tenure: Tenure, leaving: Leaving) -> None:
        """Wait for the teardown, the one that is still going on if there is one, but not for ever.

        Raises:
            TimeoutError: it goes on, and the next try waits for it again.
            Exception: the hook's own.
        """
        context = self._context
        if tenure.teardown is None:
            ending = context.hooks.on_release(tenure.term, reason=leaving.reason, is_voluntary=leaving.is_voluntary)
            name = f"release hook of {tenure.handle}"
            tenure.teardown = context.tasks.start(_as_coroutine(ending), name, is_joined=True)
        hook = tenure.teardown
        bound_s = max(_HANGING_S, context.period_s)
        timer = context.tasks.start(_as_coroutine(context.clock.sleep(bound_s)), f"bound of {tenure.handle}")
        try:
            await asyncio.wait([hook, timer], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            hook.cancel()
            await asyncio.wait([hook])
            raise
        finally:
            timer.cancel()
            if hook.done():
                tenure.teardown = None
        if not hook.done():
            raise TimeoutError(f"it has not ended after {bound_s:g} s, and goes on")
        await hook

    def _unproven(self, tenure: Tenure, leaving: Leaving, error: BaseException) -> None:
        if tenure.phase is Phase.UNDEAD:
            return
        tenure.phase = Phase.UNDEAD
        tenure.undead_since = self._context.clock.elapsed()
        _log.error(
            "seat_release_unproven",
            seat=tenure.handle,
            epoch=tenure.term.epoch,
            reason=leaving.reason,
            error=str(error) or type(error).__name__,
        )

    async def _give_back(self, tenure: Tenure) -> None:
        context, term = self._context, tenure.term
        tenure.is_giving_back = True
        # Also one that the store called lost: a renewal of it that landed too late keeps others out until now.
        try:
            await self._release(term, tenure.handle)
        except Unavailable as error:
            _log.warning("seat_lease_not_released", seat=tenure.handle, epoch=term.epoch, error=str(error))
            # A renewal on its way may still land until then, and keep the lease for a TTL more.
            lapsed_at = max(tenure.good_until, context.clock.elapsed()) + context.ttl_s
            context.give_backs[tenure.handle] = (term, lapsed_at)

    async def _release(self, term: Term, handle: str) -> None:
        context = self._context
        release = context.leases.release(term.resource, term.owner, term.epoch)
        if await context.ask(release, f"release of {handle}"):
            self._freed.append(handle)

    async def _announce(self) -> None:
        """Have the peers read the lower count, then tell them of the seats that were freed until now."""
        context = self._context
        if self._freed and self._taking_down:
            await context.clock.sleep(_TOGETHER_S)
        freed, self._freed = tuple(self._freed), []
        try:
            await context.tasks.within(self._presence.advertise(), _COUNT_S, context.clock.sleep, "lower count")
        except TimeoutError as error:
            _log.warning("seats_held_not_advertised", node=context.config.node_id, error=str(error))
        if freed:
            news = Freed(context.config.owner, context.config.node_id, freed, self._standing())
            context.tell("on_freed", lambda: self._on_freed(news))

    def _standing(self) -> Standing:
        if self._presence.is_gone:
            return "gone"
        return "stays" if self._context.is_routable else "withdrawn"

    def _rest(self, handle: str) -> None:
        self._context.resting[handle] = self._context.clock.elapsed() + self._context.ttl_s


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work
