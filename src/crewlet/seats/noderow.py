"""A node as placement counts it, and how it is written on and read from its presence lease.

Reading is lenient: a row of another build, or one that is damaged, still counts in every share.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from crewlet.ports.errors import Misuse
from crewlet.seats.lease import Lease

ROLES = ("data", "ingress", "seats", "workers")
"""What a node may be asked to do; every role unless its settings name some."""

SEATS_ROLE = "seats"

_ALL_ROLES = frozenset(ROLES)


class NodeRow(msgspec.Struct, frozen=True):
    """One live node.

    Attributes:
        node_id: the stable id of the node.
        roles: what it does, from `ROLES`.
        labels: what placements select on.
        seats_held: how many seat leases it says it holds, stuck ones included, counting only placeable seats; 0 or
            more. Advice: no claim rests on it.
        seats_withdrawn: whether it takes no seats for now although it has the role.
    """

    node_id: str
    roles: frozenset[str] = _ALL_ROLES
    labels: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    seats_held: int = 0
    seats_withdrawn: bool = False

    @property
    def places_seats(self) -> bool:
        """Whether seats are divided over this node."""
        return SEATS_ROLE in self.roles and not self.seats_withdrawn


def parse_roles(names: Sequence[str] | None) -> frozenset[str]:
    """The roles that a list names; every role for None or an empty list.

    Raises:
        Misuse: a name is not a role. Nothing of the list counts then.
    """
    unknown = sorted(set(names or ()) - _ALL_ROLES)
    if unknown:
        raise Misuse(f"unknown role {unknown[0]!r}; the roles are {', '.join(ROLES)}")
    return frozenset(names or ()) or _ALL_ROLES


def meta_from_row(row: NodeRow) -> dict[str, Any]:
    """What a node writes on its presence lease. `row_from_lease` reads it back."""
    return {
        "roles": sorted(row.roles),
        "labels": dict(row.labels),
        "seats_held": row.seats_held,
        "seats_withdrawn": row.seats_withdrawn,
    }


def row_from_lease(lease: Lease) -> NodeRow:
    """The node behind a presence lease. Never raises: what cannot be read is every role, no labels and no seats."""
    meta = lease.meta
    return NodeRow(
        node_id=lease.name,
        roles=roles_of(lease),
        labels=_read_labels(meta.get("labels")),
        seats_held=_read_count(meta.get("seats_held")),
        seats_withdrawn=meta.get("seats_withdrawn") is True,
    )


def roles_of(lease: Lease) -> frozenset[str]:
    """The roles of the node behind a presence lease, as `row_from_lease` reads them."""
    return _read_roles(lease.meta.get("roles"))


def _read_roles(value: object) -> frozenset[str]:
    if not isinstance(value, list | tuple):
        return _ALL_ROLES
    try:
        roles = frozenset(cast("Sequence[str]", value))
    except TypeError:  # what has no hash is no role
        return _ALL_ROLES
    return roles if roles and roles <= _ALL_ROLES else _ALL_ROLES


def _read_labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict | Mapping):  # nearly always a dict, which is told sooner
        return {}
    pairs = cast("Mapping[object, object]", value)
    labels = {key: text for key, text in pairs.items() if isinstance(key, str) and isinstance(text, str)}
    return labels if len(labels) == len(pairs) else {}


def _read_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if value != value or value in (float("inf"), float("-inf")):
        return 0
    return int(value) if value >= 0 and value == int(value) else 0
