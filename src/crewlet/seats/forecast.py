"""What a fleet would settle to: who ends up with which seats, and what the loss of some nodes would move.

Pure, and seen from outside the fleet. Shares and groups are those of `crewlet.seats.placement`; the nodes then take
turns, a pass each, as their sweeps do. How many seats of a group a node may hold is exact. Which ones it gets is
decided in a running fleet by who asks first; this is one of the outcomes that are possible.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter

import msgspec

from crewlet.company.model import Placement, Seat
from crewlet.seats.allotment import CLAIM_LIMIT_PER_SWEEP
from crewlet.seats.noderow import NodeRow
from crewlet.seats.placement import Group, Plan, ordered, plan, share_of

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
        order: where each group's first seat stands in the document, beside the other groups'.
        positions: where each node stands in `rows`.
        room: which nodes may hold more of a group than they do, by position.
    """

    rows: tuple[NodeRow, ...]
    plan: Plan
    seats: Mapping[str, Seat]
    held: Mapping[str, Sequence[str]]
    at_most: Mapping[str, int]
    sweeps: int
    counts: Mapping[str, Mapping[Placement, int]]
    order: Mapping[Placement, int]
    positions: Mapping[str, int]
    room: Mapping[Placement, Sequence[int]]

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
    groups = _GroupIndex(division.groups)
    takers = {row.node_id: _Taker(row, groups, {}) for row in rows}
    _, sweeps = _take_turns(takers.values(), {group.placement: deque(group.handles) for group in division.groups})
    room: dict[Placement, list[int]] = {}
    for at, taker in enumerate(takers.values()):
        for group in groups.groups_of(rows[at]):
            if taker.counts.get(group.placement, 0) < group.share:
                room.setdefault(group.placement, []).append(at)
    return Forecast(
        rows=tuple(rows),
        plan=division,
        seats={seat.handle: seat for seat in seats},
        held={node_id: taker.taken for node_id, taker in takers.items()},
        at_most={node_id: taker.at_most for node_id, taker in takers.items()},
        sweeps=sweeps,
        counts={node_id: taker.counts for node_id, taker in takers.items()},
        order={placement: at for at, placement in enumerate(dict.fromkeys(seat.placement for seat in seats))},
        positions={row.node_id: at for at, row in enumerate(rows)},
        room=room,
    )


def lose(before: Forecast, node_ids: Collection[str]) -> Loss:
    """What moves when these nodes end together, without a word, in the fleet at rest."""
    away = {before.positions[node_id] for node_id in node_ids if node_id in before.positions}
    gone = [before.rows[at] for at in sorted(away)]
    free: dict[Placement, deque[str]] = {}
    # Groups share nothing, so only those that lose a seat are divided again.
    touched: dict[Placement, Group] = {}
    for handle in (handle for row in gone for handle in before.held[row.node_id]):
        group = before.plan.group_of(handle)
        assert group is not None, handle
        touched[group.placement] = group
        free.setdefault(group.placement, deque()).append(handle)
    in_order = sorted(touched.values(), key=lambda group: before.order[group.placement])
    after = ordered([_without(group, gone) for group in in_order])
    stranded = [handle for group in after if group.nodes == 0 for handle in free.pop(group.placement)]
    if any(group.nodes and group.share > touched[group.placement].share for group in after):
        takers_at = iter(range(len(before.rows)))
    else:
        takers_at = (at for at, _ in groupby(merge(*(before.room.get(placement, ()) for placement in free))))
    groups = _GroupIndex(after)
    left = (before.rows[at] for at in takers_at if at not in away)
    takers, sweeps = _take_turns((_Taker(row, groups, before.counts[row.node_id]) for row in left), free)
    return Loss(
        nodes=tuple(row.node_id for row in gone),
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


def _take_turns(takers: Iterable["_Taker"], free: Mapping[Placement, deque[str]]) -> tuple[Sequence["_Taker"], int]:
    """Let the nodes take the free seats, which this empties as far as they may.

    Returns:
        The nodes that took some, in their order, and the number of rounds.
    """
    left = sum(len(handles) for handles in free.values())
    took: list[_Taker] = []
    waiting, rounds = takers, 0
    while left:
        again: list[_Taker] = []
        for taker in waiting:
            if won := taker.sweep(free):
                again.append(taker)
                left -= won
            if not left:
                break
        if not again:
            break
        took = took or again
        waiting, rounds = again, rounds + 1
    return took, rounds


class _Taker:
    """One node's passes: its groups in their order, each up to its room.

    Args:
        counts: how many seats of each group it holds already.
    """

    def __init__(self, row: NodeRow, index: "_GroupIndex", counts: Mapping[Placement, int]) -> None:
        self.node_id = row.node_id
        self.taken: list[str] = []
        self.counts = dict(counts)
        groups = index.groups_of(row)
        self.at_most = sum(group.share for group in groups)
        self._open = deque(groups)

    def sweep(self, free: Mapping[Placement, deque[str]]) -> int:
        """One pass; how many seats it took."""
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
        return CLAIM_LIMIT_PER_SWEEP - left


class _GroupIndex:
    """Groups by what they ask for, so that a node looks at those alone that may be its own.

    Args:
        groups: most constrained first.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._by_wish: dict[str | tuple[str, str] | None, list[tuple[int, Group]]] = {}
        for position, group in enumerate(groups):
            wish = group.placement.node or next(iter(group.placement.labels), None)
            self._by_wish.setdefault(wish, []).append((position, group))

    def groups_of(self, row: NodeRow) -> list[Group]:
        """The groups that a node may run, most constrained first."""
        if not row.places_seats:
            return []
        wishes = (None, row.node_id, *row.labels.items())
        found = [each for wish in wishes for each in self._by_wish.get(wish, ())]
        found.sort(key=itemgetter(0))
        return [group for _, group in found if group.placement.matches(row.node_id, row.labels)]


def _without(group: Group, gone: Sequence[NodeRow]) -> Group:
    """A group with these nodes away."""
    lost = sum(row.places_seats and group.placement.matches(row.node_id, row.labels) for row in gone)
    nodes = group.nodes - lost
    return msgspec.structs.replace(group, nodes=nodes, share=share_of(len(group.handles), nodes))
