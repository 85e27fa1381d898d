"""Bugs of claims and slots: of who claims what and when, and of how much is claimed and runs at once."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from contextlib import ExitStack
from typing import Any

from crewlet.company.model import Placement
from crewlet.seats.claiming import Claimer
from crewlet.seats.placement import _PlacingNodes
from crewlet.testing.sim.mutants.planting import plant, put
from crewlet.turns.slots import Slot, Slots


@plant("placement not asked")
def _not_asked(stack: ExitStack) -> None:
    def match(self: _PlacingNodes, placement: Placement) -> tuple[int, bool]:
        return original(self, placement)[0], True

    original = put(stack, _PlacingNodes, "match", match)


@plant("no limit of claims")
def _no_limit(stack: ExitStack) -> None:
    def claim(self: Claimer, candidates: Any, limit: int, **kwargs: Any) -> Any:
        return original(self, candidates, 100)

    original = put(stack, Claimer, "claim", claim)


@plant("slots not counted")
def _slots_not_counted(stack: ExitStack) -> None:
    async def take(self: Slots) -> Slot:
        self._free += 1
        return await original(self)

    original = put(stack, Slots, "take", take)
