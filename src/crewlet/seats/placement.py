"""Which seats a node should run: pure arithmetic over the live nodes and the company's seats.

Seats that share one placement are a group. A node's share of a group is the group's size over the nodes that may run
it, rounded up, and bounds that group alone: there is no total beside the shares. What a pass then does with the plan
(limits, claims, releases) is decided by its caller with the functions of `crewlet.seats.allotment`.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec

from crewlet.company.model import Placement, Seat
from crewlet.seats.noderow import NodeRow as NodeRow
from crewlet.seats.noderow import row_from_lease as row_from_lease


class Group(msgspec.Struct, frozen=True, gc=False):
    """The seats that share one placement. A struct, since a company may have as many groups as seats.

    Attributes:
        placement: what they ask of a node.
        handles: the seats, in the company document's order; one or more.
        nodes: how many live nodes may run them, among those that place seats. With 0 they are unplaceable.
        share: how many of them one matching node may hold: the size over `nodes`, rounded up; 0 when `nodes` is 0.
        is_mine: whether the planning node is one of those nodes.
    """

    placement: Placement
    handles: tuple[str, ...]
    nodes: int
    share: int
    is_mine: bool


class Plan(msgspec.Struct, frozen=True):
    """What the fleet looks like to one node.

    Attributes:
        groups: every group, most constrained first: fewest matching nodes, then placed before anywhere, then the
            document's order. A group that nobody matches counts as the most constrained, and is never `is_mine`.
        my_groups: those that this node may run, most constrained first.
        eligible: the seats that this node may run, in the document's order; empty when it places none.
        unplaceable: the seats that no live node may run, in the document's order; empty when the roster is unknown.
        placeable: how many seats some live node may run.
        capacity: the sum of this node's shares.
        nodes: how many nodes are live, this one included.
        seat_nodes: how many of them place seats: they have the role and are not withdrawn.
        peers_held: the sum of the counts that the other nodes advertise.
        is_roster_known: False when no roster was ever read and a fleet of one is assumed.
    """

    groups: tuple[Group, ...]
    my_groups: tuple[Group, ...]
    eligible: tuple[Seat, ...]
    unplaceable: tuple[Seat, ...]
    placeable: int
    capacity: int
    nodes: int
    seat_nodes: int
    peers_held: int
    is_roster_known: bool
    _group_by_handle: Mapping[str, Group]
    _basis: tuple[Sequence[Seat], Mapping[str, Mapping[str, str]], str]

    @property
    def shares(self) -> dict[Placement, int]:
        """This node's share of each of its groups, most constrained first."""
        return {group.placement: group.share for group in self.my_groups}

    def placement_of(self, handle: str) -> Placement | None:
        """The key of a seat's group in `shares` and in the room; None when the company has no such seat."""
        group = self._group_by_handle.get(handle)
        return group.placement if group is not None else None

    def group_of(self, handle: str) -> Group | None:
        """The group of a seat, whether or not this node may run it; None when the company has no such seat."""
        return self._group_by_handle.get(handle)

    def is_divided_over(self, seats: Sequence[Seat], placing: Mapping[str, Mapping[str, str]], me: str) -> bool:
        """Whether its groups are those of these very seats over these nodes, as that node sees it.

        Args:
            placing: the labels of the nodes that place seats, by id.
        """
        mine, nodes, planner = self._basis
        return mine is seats and planner == me and nodes == placing


def plan(rows: Sequence[NodeRow] | None, seats: Sequence[Seat], me: NodeRow, before: Plan | None = None) -> Plan:
    """Divide the seats over the live nodes, as this node sees it.

    Args:
        rows: the live presence rows in any order. A row without an id is ignored, an id counts once, and a row with
            this node's id gives way to `me`. None when no roster was ever read: then this node is the whole fleet and
            nothing is called unplaceable.
        seats: the company's seats, in the document's order.
        me: this process as it is now. It counts whether or not a row of it is listed.
        before: the newest plan of this node. Its groups are taken over where neither the seats (the same sequence) nor
            the nodes that place them have changed, so that a pass over a company at rest does not divide it anew.
    """
    fleet = {row.node_id: row for row in reversed(rows or ()) if row.node_id}
    peers_held = sum(row.seats_held for node_id, row in fleet.items() if node_id != me.node_id)
    fleet[me.node_id] = me
    placing = {row.node_id: row.labels for row in fleet.values() if row.places_seats}
    is_known = rows is not None
    if before is not None and before.is_roster_known is is_known and before.is_divided_over(seats, placing, me.node_id):
        return msgspec.structs.replace(before, nodes=len(fleet), peers_held=peers_held)
    index = _PlacingNodes(placing, me.node_id)

    groups = ordered([_group(index, placement, handles) for placement, handles in _members(seats)])

    by_handle = {handle: group for group in groups for handle in group.handles}
    mine = tuple(group for group in groups if group.is_mine)
    return Plan(
        groups=groups,
        my_groups=mine,
        eligible=_seats_of(mine, seats),
        unplaceable=_seats_of([group for group in groups if group.nodes == 0], seats) if is_known else (),
        placeable=sum(len(group.handles) for group in groups if group.nodes > 0),
        capacity=sum(group.share for group in mine),
        nodes=len(fleet),
        seat_nodes=index.count,
        peers_held=peers_held,
        is_roster_known=is_known,
        _group_by_handle=by_handle,
        _basis=(seats, placing, me.node_id),
    )


def ordered(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups in the document's order, most constrained first."""
    # sorted() is stable, so what ties keeps the order of the document, and the group without a placement is last.
    placed = [group for group in groups if not group.placement.is_anywhere]
    anywhere = [group for group in groups if group.placement.is_anywhere]
    return tuple(sorted(placed + anywhere, key=attrgetter("nodes")))


def share_of(seats: int, nodes: int) -> int:
    """How many of a group's seats one of these nodes may hold."""
    return -(-seats // nodes) if nodes else 0


class _PlacingNodes:
    """The nodes that place seats, one bit each, so that a placement costs a few integer operations and not a loop."""

    def __init__(self, placing: Mapping[str, Mapping[str, str]], me: str) -> None:
        self.count = len(placing)
        self._all = (1 << len(placing)) - 1
        self._by_node: dict[str, int] = {}
        self._by_label: dict[tuple[str, str], int] = {}
        for position, (node_id, labels) in enumerate(placing.items()):
            bit = 1 << position
            self._by_node[node_id] = bit
            for label in labels.items():
                self._by_label[label] = self._by_label.get(label, 0) | bit
        self._mine = self._by_node.get(me, 0)

    def match(self, placement: Placement) -> tuple[int, bool]:
        """How many of the nodes match, and whether the planning node does; the same judgement as `matches`."""
        mask = self._all if placement.node is None else self._by_node.get(placement.node, 0)
        for label in placement.labels:
            mask &= self._by_label.get(label, 0)
        return mask.bit_count(), bool(mask & self._mine)


def _members(seats: Sequence[Seat]) -> Iterator[tuple[Placement, list[str]]]:
    """The handles of each group."""
    # Plain tuples as keys: a placement's own hash and equality are not the interpreter's, and this runs once a seat.
    members: dict[tuple[str | None, tuple[tuple[str, str], ...]], list[str]] = {}
    placements: list[Placement] = []
    for seat in seats:
        placement = seat.placement
        key = placement.node, placement.labels
        handles = members.get(key)
        if handles is None:
            placements.append(placement)
            members[key] = [seat.handle]
        else:
            handles.append(seat.handle)
    return zip(placements, members.values(), strict=True)


def _group(index: _PlacingNodes, placement: Placement, handles: Sequence[str]) -> Group:
    nodes, is_mine = index.match(placement)
    return Group(placement, tuple(handles), nodes, share_of(len(handles), nodes), is_mine)


def _seats_of(groups: Sequence[Group], seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """The seats of these groups, in the document's order."""
    handles = {handle for group in groups for handle in group.handles}
    return tuple(seat for seat in seats if seat.handle in handles) if handles else ()
