"""P6, judged as time goes by: with the fleet settled, a seat that is free is held within a sweep for each four of them.

The fleet is settled when nothing is going wrong, no node comes, goes or is still counted after its end, and every node
has the newest document. What is free then, whether it was given back or its holder's lease has lapsed, has somebody who
may take it: the shares of the counted nodes cover every seat.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from crewlet.company.model import Seat
from crewlet.seats.allotment import CLAIM_LIMIT_PER_SWEEP, SWEEP_INTERVAL_S

_SLACK_S = 3.0


@dataclass(frozen=True, slots=True)
class Living:
    """A node that runs, has started and is not leaving."""

    node_id: str
    owner: str
    protocol: int
    labels: Mapping[str, str]
    is_level: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """What is looked at.

    Attributes:
        counted: the owners of the live presences.
        held: since when each seat that has a live lease is held, by handle.
        oldest: the lowest protocol of the live leases.
    """

    living: Collection[Living]
    counted: frozenset[str]
    held: Mapping[str, float]
    oldest: int


class Vacancies:
    """Watches the free seats.

    Args:
        fail: called with a promise and how it was broken.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._settled_since = 0.0
        self._settled_as: object = None
        self._free_since: dict[str, float] = {}
        self._free_at_once = 0
        self._looked_at = 0.0

    def look(self, now: float, scene: Scene, seats: Collection[Seat]) -> None:
        """Called every second or so, where nothing has been going wrong for so long that no trace of it is left."""
        self._note_free(now, scene, seats)
        as_now = (frozenset(each.owner for each in scene.living), tuple(map(id, seats)))
        if not self._is_settled(scene) or as_now != self._settled_as:
            self._settled_as, self._settled_since, self._free_at_once = as_now, now, 0
        # What came free and was taken since the last look has used up claims as well.
        taken = sum(since > self._looked_at for since in scene.held.values())
        self._free_at_once = max(self._free_at_once, len(self._free_since) + taken)
        self._looked_at = now
        sweeps = -(-self._free_at_once // CLAIM_LIMIT_PER_SWEEP)
        for handle, free_since in self._free_since.items():
            waited_s = now - max(free_since, self._settled_since)
            if waited_s > sweeps * SWEEP_INTERVAL_S + _SLACK_S:
                text = f"{handle} has been free for {waited_s:.1f} s in a settled fleet, one of {self._free_at_once}"
                self._fail("P6", text)

    def stir(self, now: float) -> None:
        """In place of a look while something is going wrong: nothing is settled."""
        self._settled_as, self._settled_since, self._free_at_once = None, now, 0
        self._looked_at = now
        self._free_since.clear()

    def _note_free(self, now: float, scene: Scene, seats: Collection[Seat]) -> None:
        free = {seat.handle for seat in seats if seat.handle not in scene.held and _has_a_home(seat, scene.living)}
        self._free_since = {handle: self._free_since.get(handle, now) for handle in sorted(free)}

    def _is_settled(self, scene: Scene) -> bool:
        owners = frozenset(each.owner for each in scene.living)
        return owners == scene.counted and all(each.is_level and each.protocol <= scene.oldest for each in scene.living)


def _has_a_home(seat: Seat, living: Collection[Living]) -> bool:
    return any(seat.placement.matches(each.node_id, each.labels) for each in living)
