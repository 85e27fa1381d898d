"""Seats that a peer says it has just given back: tried at once, instead of at the next pass.

Nothing rests on the news: a message that is lost costs a pass, and one that is wrong costs a claim that loses.
"""

from collections.abc import Collection

import structlog

from crewlet.seats.claiming import Claimer
from crewlet.seats.context import HostContext
from crewlet.seats.pace import EARLY_CLAIMS, EarlyClaims
from crewlet.seats.placement import Plan
from crewlet.seats.presence import Presence

_log = structlog.get_logger()

JITTER_S = 0.02
JITTER_A_NODE_S = 0.001
"""A fleet is spread over so much for each of its nodes, and over JITTER_S at most."""

MOST_LOST = 2 * EARLY_CLAIMS
"""So many claims lost to peers end a try: they are at it, and what they leave is the next pass's."""


class FreedSeats:
    """Collects the news for a moment, then claims within the plan of the newest pass."""

    def __init__(self, context: HostContext, claimer: Claimer, presence: Presence, early: EarlyClaims) -> None:
        self._context = context
        self._claimer = claimer
        self._presence = presence
        self._early = early
        self._heard: set[str] = set()
        self._is_collecting = False

    def note(self, handles: Collection[str]) -> bool:
        """Add to what is to be tried. True when `collect` is to be called for it: nobody is collecting."""
        self._heard.update(handles)
        was_collecting, self._is_collecting = self._is_collecting, True
        return not was_collecting

    async def collect(self, nodes: int) -> Collection[str]:
        """Wait for a random moment, and answer with all that was noted until then.

        Args:
            nodes: how many heard it. Those a little later find the lease taken by one read.
        """
        spread_s = min(JITTER_S, JITTER_A_NODE_S * nodes)
        try:
            await self._context.clock.sleep(spread_s * self._context.entropy.random())
        finally:
            self._is_collecting = False
        heard, self._heard = self._heard, set()
        return heard

    async def claim(self, handles: Collection[str], division: Plan) -> tuple[str, ...]:
        """Try those of the freed seats for which this node has room.

        Returns:
            The seats established here.
        """
        context = self._context
        wanted = self._order(handles, division)
        won = await self._claimer.claim(wanted, EARLY_CLAIMS, early=self._early, most_lost=MOST_LOST)
        if not won.takes:
            return ()
        await self._claimer.patiently([task for _, task in won.takes], context.ttl_s)
        await self._presence.advertise()
        _log.info("seats_claimed_early", seats=list(won.established))
        return won.established

    def _order(self, handles: Collection[str], division: Plan) -> list[str]:
        """Groups as in a pass, but any order within one: peers that all began with the same seat would all but one
        lose, and meet again at the next."""
        rank = {group.placement: place for place, group in enumerate(division.my_groups)}
        keys: dict[str, tuple[int, float]] = {}
        for handle in self._claimer.candidates(division):
            placement = division.placement_of(handle)
            if handle in handles and placement is not None:
                keys[handle] = (rank.get(placement, len(rank)), self._context.entropy.random())
        return sorted(keys, key=keys.__getitem__)
