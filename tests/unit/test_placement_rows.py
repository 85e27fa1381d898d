"""How a node is written on, and read from, its presence lease."""

from datetime import UTC, datetime
from typing import Any

import pytest

from crewlet.ports.errors import Misuse
from crewlet.seats.lease import Lease
from crewlet.seats.noderow import ROLES, NodeRow, meta_from_row, parse_roles
from crewlet.seats.placement import plan, row_from_lease

proves = pytest.mark.proves

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def lease(meta: dict[str, Any], node_id: str = "n") -> Lease:
    return Lease(f"node:{node_id}", f"{node_id}:1", 1, NOW, NOW, meta=meta)


@proves("PL-07")
@pytest.mark.parametrize("roles", [None, [], "seats", ["seats", "unheard-of"], 7, {"seats": 1}, [None], [["seats"]]])
@pytest.mark.parametrize("labels", [None, {}, "zone", ["zone"], 7, {"zone": 3}, {"zone": None}])
def test_a_damaged_row_is_every_role_and_no_labels(roles: object, labels: object) -> None:
    row = row_from_lease(lease({"roles": roles, "labels": labels}))
    assert (row.node_id, row.roles, dict(row.labels)) == ("n", frozenset(ROLES), {})
    assert plan([row], [], NodeRow("me")).seat_nodes == 2


@proves("PL-07")
def test_an_empty_row_still_counts() -> None:
    assert row_from_lease(lease({})) == NodeRow("n")


@proves("PL-17")
@pytest.mark.parametrize(
    ("value", "count"),
    [(3, 3), (3.0, 3), ("3", 0), (-1, 0), (2.5, 0), (None, 0), (True, 0), (float("nan"), 0), (float("inf"), 0)],
)
def test_a_count_is_read_or_is_nothing(value: object, count: int) -> None:
    assert row_from_lease(lease({"seats_held": value})).seats_held == count


def test_a_row_reads_back_as_it_was_written() -> None:
    row = NodeRow("n", frozenset({"seats", "data"}), {"zone": "eu", "gpu": ""}, seats_held=4, seats_withdrawn=True)
    assert row_from_lease(lease(meta_from_row(row))) == row


@proves("PL-19")
def test_role_lists_are_read_strictly() -> None:
    assert parse_roles(None) == parse_roles([]) == frozenset(ROLES)
    assert parse_roles(["seats", "seats", "data"]) == {"seats", "data"}
    with pytest.raises(Misuse, match="cook"):
        parse_roles(["seats", "cook"])
