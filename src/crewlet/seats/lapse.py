"""The timer of one tenure: what could act is ended before the lease can lapse, and the fence closes when it does.

It asks nobody and needs no heartbeat. A renewal that is answered moves the instant, and with it the timer.
"""

from collections.abc import Callable

import structlog

from crewlet.seats.context import HostContext
from crewlet.seats.tenure import Phase, Tenure

_log = structlog.get_logger()

_RETRY_S = 0.2


def margin_s(ttl_s: float) -> float:
    """How long before its instant a tenure's turn and programs are ended."""
    return min(1.0, ttl_s / 10)


class LapseTimers:
    """One timer a tenure.

    Args:
        on_stopped: called when everything of a tenure was seen to end, before its lease lapsed or after.
    """

    def __init__(self, context: HostContext, on_stopped: Callable[[Tenure], None]) -> None:
        self._context = context
        self._on_stopped = on_stopped

    def watch(self, tenure: Tenure) -> None:
        """Begin. It ends with the tenure."""
        if self._context.can_lapse:
            tenure.lapse = self._context.tasks.start(self._watch(tenure), f"lapse timer of {tenure.handle}")

    async def _watch(self, tenure: Tenure) -> None:
        await self._sleep_until(tenure, margin_s(self._context.ttl_s))
        tenure.is_lapsing = True
        _log.warning("seat_lease_lapsing", seat=tenure.handle, epoch=tenure.term.epoch, phase=tenure.phase.value)
        if tenure.phase is Phase.ACQUIRING:
            # Whoever acquires it waits for this, and takes down what the hook has begun.
            tenure.fence.close("lease_lapsing")
            return
        self._context.tasks.start(self.stop(tenure), f"stopping {tenure.handle}")
        await self._sleep_until(tenure, 0.0)
        tenure.fence.close("lease_lapsed")

    async def _sleep_until(self, tenure: Tenure, before_s: float) -> None:
        while (wait_s := tenure.good_until - before_s - self._context.clock.elapsed()) > 0:
            await self._context.clock.sleep(wait_s)

    async def stop(self, tenure: Tenure) -> None:
        """See everything of the tenure end. The parent's deadline stands until that is proven."""
        context = self._context
        while context.tenures.is_current(tenure) and not tenure.is_stopped:
            try:
                await context.hooks.stop_programs(tenure.term)
            except Exception as error:  # noqa: BLE001 -- whatever it is, nothing is proven
                _log.error("seat_stop_unproven", seat=tenure.handle, epoch=tenure.term.epoch, error=str(error))
                await context.clock.sleep(_RETRY_S)
            else:
                tenure.is_stopped = True
        tenure.fence.close("lease_lapsing")
        context.tenures.publish()
        self._on_stopped(tenure)
