"""What a fleet would settle to: who ends up with which seats, and what the loss of some nodes would move.

Pure, and seen from outside the fleet. Shares and groups are those of `crewlet.seats.placement`; the nodes then take
turns, a pass each, as their sweeps do. How many seats of a group a node may hold is exact. Which ones it gets is
decided in a running fleet by who asks first; this is one of the outcomes that are possible.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from crewlet.company.model import Placement, Seat
from crewlet.seats.allotment import CLAIM_LIMIT_PER_SWEEP
from crewlet.seats.noderow import NodeRow
from crewlet.seats.placement import Group, Plan, plan

_OUTSIDE = NodeRow("", roles=frozenset())
"""Who looks at the fleet: a row that places no seats, so that it counts in no share."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A fleet at rest.

    Attributes:
        rows: its nodes.
        plan: the groups and their shares; no group is `is_mine`.
        seats: of the company, by handle.
        held: the seats of every node, in the order in which it takes them; a node that takes none has an empty entry.
        at_most: how many seats each node may hold: the sum of its shares.
        sweeps: how many passes the slowest node needs to get there from nothing.
        counts: how many seats of each group each node holds.
    """

    rows: tuple[NodeRow, ...]
    plan: Plan
    seats: Mapping[str, Seat]
    held: Mapping[str, Sequence[str]]
    at_most: Mapping[str, int]
    sweeps: int
    counts: Mapping[str, Mapping[Placement, int]]

    def seats_of(self, group: Group) -> list[Seat]:
        """The seats of a group, in the document's order."""
        return [self.seats[handle] for handle in group.handles]


@dataclass(frozen=True, slots=True)
class Loss:
    """What the end of some nodes moves. Nothing else moves: with fewer nodes no share becomes smaller.

    Attributes:
        nodes: the ids of those that are gone.
        moves: the node that takes each of their seats, by handle.
        stranded: their seats that no other node may run, in the order in which they were held.
        sweeps: how many passes the survivor needs that has most to take; 0 when there is nothing to take.
    """

    nodes: tuple[str, ...]
    moves: Mapping[str, str]
    stranded: tuple[Seat, ...]
    sweeps: int


def forecast(rows: Sequence[NodeRow], seats: Sequence[Seat]) -> Forecast:
    """What these nodes come to when they all start with nothing.

    Args:
        rows: the nodes, each id once.
        seats: the company's seats, in the document's order.
    """
    division = plan(rows, seats, _OUTSIDE)
    takers = {row.node_id: _Taker(row, division, {}) for row in rows}
    sweeps = _take_turns(takers.values(), {group.placement: deque(group.handles) for group in division.groups})
    return Forecast(
        rows=tuple(rows),
        plan=division,
        seats={seat.handle: seat for seat in seats},
        held={node_id: taker.taken for node_id, taker in takers.items()},
        at_most={node_id: taker.at_most for node_id, taker in takers.items()},
        sweeps=sweeps,
        counts={node_id: taker.counts for node_id, taker in takers.items()},
    )


def lose(before: Forecast, node_ids: Collection[str]) -> Loss:
    """What moves when these nodes end together, without a word, in the fleet at rest."""
    gone = [row.node_id for row in before.rows if row.node_id in node_ids]
    rows = [row for row in before.rows if row.node_id not in node_ids]
    free: dict[Placement, deque[str]] = {}
    for handle in (handle for node_id in gone for handle in before.held[node_id]):
        placement = before.plan.placement_of(handle)
        assert placement is not None, handle
        free.setdefault(placement, deque()).append(handle)
    # Groups share nothing, so only those that lost a seat are divided again.
    touched = [group for group in before.plan.groups if group.placement in free]
    after = plan(rows, [seat for group in touched for seat in before.seats_of(group)], _OUTSIDE)
    stranded = [handle for group in after.groups if group.nodes == 0 for handle in free[group.placement]]
    takers = [_Taker(row, after, before.counts[row.node_id]) for row in rows]
    sweeps = _take_turns(takers, free)
    return Loss(
        nodes=tuple(gone),
        moves={handle: taker.node_id for taker in takers for handle in taker.taken},
        stranded=tuple(before.seats[handle] for handle in stranded),
        sweeps=sweeps,
    )


def why_unplaceable(placement: Placement, rows: Sequence[NodeRow]) -> str:
    """Why none of these nodes may run a seat that is placed so; "" when one may."""
    fits = [row for row in rows if placement.matches(row.node_id, row.labels)]
    if any(row.places_seats for row in fits):
        return ""
    if not rows:
        return "no node is left"
    if not any(row.places_seats for row in rows):
        return "no node takes seats"
    if fits:
        names = " and ".join([", ".join(row.node_id for row in fits[:-1]), fits[-1].node_id][len(fits) < 2 :])
        return f"{names} would match, but {'takes' if len(fits) == 1 else 'take'} no seats"
    named = [row for row in rows if placement.node in (None, row.node_id)]
    if not named:
        return f"there is no node {placement.node}"
    missing = [
        f"{key}={value}" for key, value in placement.labels if all(row.labels.get(key) != value for row in named)
    ]
    if placement.node is not None:
        return f"{placement.node} is not labelled {', '.join(missing)}"
    if missing:
        return f"no node is labelled {', '.join(missing)}"
    return "no single node has all of these labels"


def _take_turns(takers: Iterable["_Taker"], free: Mapping[Placement, deque[str]]) -> int:
    """Let the nodes take the free seats, which this empties as far as they may; the number of rounds."""
    waiting, rounds = list(takers), 0
    while waiting := [taker for taker in waiting if taker.sweep(free)]:
        rounds += 1
    return rounds


class _Taker:
    """One node's passes: its groups in their order, each up to its room.

    Args:
        counts: how many seats of each group it holds already.
    """

    def __init__(self, row: NodeRow, division: Plan, counts: Mapping[Placement, int]) -> None:
        self.node_id = row.node_id
        self.taken: list[str] = []
        self.counts = dict(counts)
        groups = _groups_of(row, division)
        self.at_most = sum(group.share for group in groups)
        self._open = deque(groups)

    def sweep(self, free: Mapping[Placement, deque[str]]) -> bool:
        """One pass; whether it took anything."""
        left = CLAIM_LIMIT_PER_SWEEP
        while left and self._open:
            group = self._open[0]
            seats, count = free[group.placement], self.counts.get(group.placement, 0)
            won = min(left, group.share - count, len(seats))
            self.taken.extend(seats.popleft() for _ in range(won))
            self.counts[group.placement] = count + won
            left -= won
            if count + won >= group.share or not seats:
                self._open.popleft()  # full, or nothing of it is left for anybody
        return left < CLAIM_LIMIT_PER_SWEEP


def _groups_of(row: NodeRow, division: Plan) -> list[Group]:
    """The groups that a node may run, most constrained first."""
    if not row.places_seats:
        return []
    return [group for group in division.groups if group.nodes and group.placement.matches(row.node_id, row.labels)]
