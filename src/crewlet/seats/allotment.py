"""What one pass may do with a plan: room, claims, releases, and whether there is anything left to try.

Pure; the limits a pass keeps (claims, releases) are applied by the caller, who takes a prefix of an order. In every
function `running` are the seats this node holds and serves, `stuck` those whose teardown is not proven: it still holds
their leases, and they are charged before anything else.
"""

from collections.abc import Callable, Collection
from typing import Final, Literal

from crewlet.company.model import Placement
from crewlet.seats.placement import Plan

SWEEP_INTERVAL_S: Final = 5.0
CLAIM_LIMIT_PER_SWEEP: Final = 4
RELEASE_LIMIT_PER_SWEEP: Final = 2

UnwantedReason = Literal["unserviceable", "role_gone", "placement"]


def room(plan: Plan, running: Collection[str], stuck: Collection[str] = ()) -> dict[Placement, int]:
    """How many more seats of each of its groups this node may hold, most constrained group first.

    Negative is excess: so many of the group's running seats are to be given back. Stuck seats are charged first, in
    whatever group they sit or in none; what capacity is left goes to the groups in order, each up to its share less its
    own stuck seats. A running seat outside this node's groups is charged to none (see `unwanted`).
    """
    stuck_in: dict[Placement, int] = {}
    running_in: dict[Placement, int] = {}
    for handles, counts in ((set(stuck), stuck_in), (set(running) - set(stuck), running_in)):
        for handle in handles:
            if (group := plan.group_of(handle)) is not None:
                counts[group.placement] = counts.get(group.placement, 0) + 1
    left = max(0, plan.capacity - len(set(stuck)))
    rooms: dict[Placement, int] = {}
    for group in plan.my_groups:
        allotted = min(max(0, group.share - stuck_in.get(group.placement, 0)), left)
        left -= allotted
        rooms[group.placement] = allotted - running_in.get(group.placement, 0)
    return rooms


def claim_order(
    plan: Plan, running: Collection[str], stuck: Collection[str] = (), hinted: Collection[str] = ()
) -> list[str]:
    """The seats worth a try, best first: most constrained groups first, and in a group those that prefer this node.

    Only seats of groups with room, and none that this node holds. The list is longer than the room: a seat may prove
    to be a peer's. The caller stops at its own limit of won claims and counts each group's room down as it wins:

        rooms = room(plan, running, stuck)
        for handle in claim_order(plan, running, stuck, hinted):
            placement = plan.placement_of(handle)
            if rooms[placement] > 0 and await try_claim(handle): rooms[placement] -= 1

    Args:
        hinted: handles of the seats whose preferred node is this one, held or not.
    """
    rooms = room(plan, running, stuck)
    held = {*running, *stuck}
    preferring = set(hinted)
    order: list[str] = []
    for group in plan.my_groups:
        if rooms[group.placement] > 0:
            free = [handle for handle in group.handles if handle not in held]
            order += [handle for handle in free if handle in preferring]
            order += [handle for handle in free if handle not in preferring]
    return order


def shed_order(
    plan: Plan, running: Collection[str], stuck: Collection[str], is_busy: Callable[[str], bool]
) -> list[str]:
    """The excess to give back, first to go first: least constrained groups first, idle before busy, then by handle.

    Exactly the excess over every group's allotment; the caller cuts it at its release limit, and does not make up for a
    release that could not be proven (that seat is stuck from then on, and charged as such).
    """
    rooms = room(plan, running, stuck)
    serving = set(running) - set(stuck)
    order: list[str] = []
    for group in reversed(plan.my_groups):
        excess = -rooms[group.placement]
        if excess > 0:
            ours = sorted(serving.intersection(group.handles), key=lambda handle: (is_busy(handle), handle))
            order += ours[:excess]
    return order


def unwanted(plan: Plan, running: Collection[str], *, is_withdrawn: bool = False) -> dict[str, UnwantedReason]:
    """The running seats this node should not hold at all, by handle in sorted order, and why. No limit applies.

    Args:
        is_withdrawn: this node cannot serve any seat's work, so that every one goes back as `unserviceable`.
    """
    reasons: dict[str, UnwantedReason] = {}
    for handle in sorted(set(running)):
        group = plan.group_of(handle)
        if is_withdrawn:
            reasons[handle] = "unserviceable"
        elif group is None:
            reasons[handle] = "role_gone"
        elif not group.is_mine:
            reasons[handle] = "placement"
    return reasons


def advertised(plan: Plan, running: Collection[str], stuck: Collection[str] = ()) -> int:
    """The count for this node's presence row: the seat leases it holds, of seats that some live node may run."""
    groups = [plan.group_of(handle) for handle in {*running, *stuck}]
    return len([group for group in groups if group is not None and group.nodes > 0])


def is_fleet_full(plan: Plan, running: Collection[str], stuck: Collection[str] = ()) -> bool:
    """Whether the advertised counts cover every seat that some live node may run, so that no claim is worth a try.

    Always False when no roster was ever read. A caller whose roster of this pass could not be read, and that plans with
    an older one, does not ask: old counts conclude nothing.
    """
    return plan.is_roster_known and plan.peers_held + advertised(plan, running, stuck) >= plan.placeable
