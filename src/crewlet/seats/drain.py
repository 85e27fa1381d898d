"""Leaving: claims stop, presence goes first, then every seat as its handler ends, all within one time budget."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import structlog

from crewlet.ports.errors import Unavailable
from crewlet.seats.allowance import Allowance
from crewlet.seats.context import HostContext
from crewlet.seats.handoff import Handoff
from crewlet.seats.lease import ClaimResult
from crewlet.seats.presence import Presence
from crewlet.seats.tenure import Phase

_log = structlog.get_logger()

PROGRESS_S = 10.0


class Drain:
    """Gives everything back once. Running handlers end in their own time, unless `hurry` is called."""

    def __init__(self, context: HostContext, handoff: Handoff, presence: Presence) -> None:
        self._context = context
        self._handoff = handoff
        self._presence = presence

    def begin(self) -> None:
        """From now on no claim is made or kept, and no turn starts."""
        context = self._context
        if not context.is_draining:
            context.is_draining = True
            context.allowance = Allowance(context.tasks, context.clock, context.ttl_s / 3)

    def hurry(self, reason: str) -> None:
        """Wait for no handler: close every fence, cut every acquisition short."""
        self._context.hurry.set(reason)
        for tenure in self._context.tenures.all():
            tenure.fence.close(reason)

    def forget_store(self) -> None:
        """Nobody answers there any more: what is still asked is not waited for."""
        if self._context.allowance is not None:
            self._context.allowance.give_up()

    async def run(self) -> None:
        """Give presence and seats back. Never raises for the store: what is not answered lapses."""
        context = self._context
        self.begin()
        farewell = context.tasks.start(self._give_up_presence(), "giving up presence")
        await asyncio.wait([farewell])
        for tenure in context.tenures.all():
            if tenure.phase is Phase.HELD:
                handle = tenure.handle
                context.tell("on_admission", lambda handle=handle: context.hooks.on_admission(handle, False))
        progress = context.tasks.start(self._report(), "drain progress")
        try:
            await self._settle_claims()
            await self._release_all()
            await self._end_left()
        finally:
            progress.cancel()

    async def _give_up_presence(self) -> None:
        allowance = self._context.allowance
        assert allowance is not None
        try:
            # Half, so that a store which does not answer leaves something for the seats.
            half_s = self._context.ttl_s / 6
            await allowance.spend(self._presence.give_up(), "release of presence", at_most_s=half_s)
        except Unavailable as error:
            _log.warning("node_presence_not_released", node=self._context.config.node_id, error=str(error))

    async def _settle_claims(self) -> None:
        """Let claims in flight be answered: each gives its lease straight back."""
        context = self._context
        claims = [claimed for claimed in context.claims.values() if not claimed.done()]
        if claims:
            try:
                await context.ask(_wait_all(claims), "claims in flight")
            except Unavailable:
                _log.warning("seat_claims_in_flight", seats=sorted(context.claims))

    async def _release_all(self) -> None:
        context = self._context
        is_voluntary = not context.hurry.is_set
        releases = [
            context.tasks.start(
                self._handoff.release(tenure, "drain", is_voluntary=is_voluntary), f"release of {tenure.handle}"
            )
            for tenure in context.tenures.all()
        ]
        if releases:
            await asyncio.wait(releases)

    async def _end_left(self) -> None:
        """End the programs of what is not proven to have ended: nobody renews its lease once this process goes on to
        stop. What does not end even so leaves with the process."""
        context = self._context
        left = [self._handoff.stop_programs(tenure) for tenure in context.tenures.all() if not tenure.is_stopped]
        if left:
            ending = _all(left)
            with suppress(TimeoutError):
                await context.tasks.within(ending, context.ttl_s / 3, context.clock.sleep, "ends of what is left")

    async def _report(self) -> None:
        context = self._context
        while True:
            await context.clock.sleep(PROGRESS_S)
            tenures = context.tenures.all()
            busy = [tenure.handle for tenure in tenures if context.is_busy(tenure.handle)]
            _log.info("drain_in_progress", seats=len(tenures), busy=busy)


async def _all(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works)


async def _wait_all(claims: "list[asyncio.Future[ClaimResult | None]]") -> None:
    await asyncio.wait(claims)
