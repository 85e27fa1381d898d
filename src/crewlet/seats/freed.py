"""Seats that a peer says it has just given back: tried at once, instead of at the next pass.

Nothing rests on the news: a message that is lost costs a pass, and one that is wrong costs a claim that loses.
"""

from collections import deque
from collections.abc import Collection

import structlog

from crewlet.seats.claiming import Claimer
from crewlet.seats.context import HostContext
from crewlet.seats.placement import Plan
from crewlet.seats.presence import Presence

_log = structlog.get_logger()

JITTER_S = 0.02
EARLY_CLAIMS = 4


class EarlyClaims:
    """How many seats may be won between the ticks: so many in any stretch of one interval. A claim lost is free."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._won_at: deque[float] = deque()

    def left(self, now: float) -> int:
        while self._won_at and now - self._won_at[0] >= self._interval_s:
            self._won_at.popleft()
        return max(0, EARLY_CLAIMS - len(self._won_at))

    def charge(self, now: float, count: int) -> None:
        self._won_at.extend([now] * count)


class FreedSeats:
    """Reacts to news of freed seats, with the plan of the newest pass."""

    def __init__(self, context: HostContext, claimer: Claimer, presence: Presence, early: EarlyClaims) -> None:
        self._context = context
        self._claimer = claimer
        self._presence = presence
        self._early = early

    async def claim(self, handles: Collection[str], division: Plan) -> tuple[str, ...]:
        """Try those of the freed seats for which this node has room.

        Returns:
            The seats established here.
        """
        context = self._context
        # Every peer hears it in the same moment; those a little later find the lease taken by one read.
        await context.clock.sleep(JITTER_S * context.entropy.random())
        limit = self._early.left(context.clock.elapsed())
        wanted = [handle for handle in self._claimer.candidates(division) if handle in handles]
        if not wanted or limit == 0:
            return ()
        won = await self._claimer.claim(wanted, division, limit)
        if not won.takes:
            return ()
        self._early.charge(context.clock.elapsed(), len(won.takes))
        await self._claimer.patiently([task for _, task in won.takes], context.ttl_s)
        await self._presence.advertise()
        _log.info("seats_claimed_early", seats=list(won.established))
        return won.established
