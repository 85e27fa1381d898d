"""Claiming several seats within the shares: one claim after the other, and the won seats established side by side."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from crewlet.ports.errors import Unavailable
from crewlet.seats import allotment
from crewlet.seats.context import HostContext
from crewlet.seats.handoff import Claimed, Handoff
from crewlet.seats.lease import ClaimRefused, ClaimResult, Granted
from crewlet.seats.pace import EarlyClaims
from crewlet.seats.placement import Plan

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Won:
    """What a round of claims came to.

    Attributes:
        takes: the seats whose claim was won, each with the task that establishes it (True: established).
        floor: the protocol floor that refused a claim and ended the round, or None.
    """

    takes: tuple[tuple[str, "asyncio.Task[bool]"], ...]
    floor: int | None = None

    @property
    def established(self) -> tuple[str, ...]:
        """The seats established by now."""
        done = [(handle, task) for handle, task in self.takes if task.done() and not task.cancelled()]
        return tuple(handle for handle, task in done if task.exception() is None and task.result())


class Claimer:
    """Makes claims for passes and for seats heard to be free. Each sees what the other has under way.

    Args:
        newest: the newest plan of this node; None before the first. Claims that take long, over a slow line, keep to
            the shares of a plan that was made meanwhile.
    """

    def __init__(self, context: HostContext, handoff: Handoff, newest: Callable[[], Plan | None]) -> None:
        self._context = context
        self._handoff = handoff
        self._newest = newest

    def candidates(self, division: Plan, hinted: Sequence[str] = ()) -> list[str]:
        """The seats worth a claim now, best first: in groups with room, not here already, and not resting."""
        context = self._context
        now = context.clock.elapsed()
        order = allotment.claim_order(division, self._running(), context.tenures.stuck(), hinted)
        return [h for h in order if context.resting.get(h, now) <= now and context.tenures.get(h) is None]

    async def claim(
        self,
        candidates: Sequence[str],
        limit: int,
        *,
        early: EarlyClaims | None = None,
        most_lost: int | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> Won:
        """Claim in order until so many are won, a group's room is used up, or the store refuses to go on.

        Args:
            early: what is won is charged here, and nothing left here ends it too.
            most_lost: so many claims that were not won end it; None is no bound.
            on_step: called before each claim.
        """
        context = self._context
        takes: list[tuple[str, asyncio.Task[bool]]] = []
        lost = 0
        for handle in candidates:
            if len(takes) >= limit or lost == most_lost or not context.may_take:
                break
            # It may have come here since the candidates were counted, and its lock is held until it is established.
            if handle in context.claims or context.tenures.get(handle) is not None or not self._has_room(handle):
                continue
            if early is not None and not early.take():
                break
            if on_step is not None:
                on_step()
            claimed: Claimed = asyncio.get_running_loop().create_future()
            task = context.tasks.start(self._handoff.take(handle, claimed), f"taking {handle}")
            answer = await self._answer(handle, claimed)
            if isinstance(answer, Granted):
                takes.append((handle, task))
                continue
            lost += 1
            if early is not None:
                early.put_back()
            if isinstance(answer, Unavailable):
                break
            if isinstance(answer, ClaimRefused) and answer.reason == "protocol":
                return Won(tuple(takes), answer.floor)
        return Won(tuple(takes))

    async def patiently(self, tasks: Sequence["asyncio.Task[bool]"], at_most_s: float) -> None:
        """Wait for seats that come or go, up to a bound; what takes longer goes on by itself."""
        if not tasks:
            return
        context = self._context
        try:
            await context.tasks.within(_wait_all(tasks), at_most_s, context.clock.sleep, "seats on the move")
        except TimeoutError:
            _log.warning("seats_still_moving", seats=sum(not task.done() for task in tasks))

    async def _answer(self, handle: str, claimed: Claimed) -> ClaimResult | Unavailable | None:
        try:
            return await claimed
        except Unavailable as error:
            _log.warning("seat_claim_unavailable", seat=handle, error=str(error))
            return error

    def _running(self) -> list[str]:
        """What is run here or may be about to be, claims on their way included."""
        context = self._context
        running = context.tenures.running()
        return [*running, *(handle for handle in context.claims if handle not in running)]

    def _has_room(self, handle: str) -> bool:
        division = self._newest()
        placement = division.placement_of(handle) if division is not None else None
        if division is None or placement is None:
            return False
        return allotment.room(division, self._running(), self._context.tenures.stuck()).get(placement, 0) > 0


async def _wait_all(tasks: Sequence["asyncio.Task[bool]"]) -> None:
    await asyncio.wait(tasks)
