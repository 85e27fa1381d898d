"""Placement: groups, shares and what is left of them."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from crewlet.company.model import Placement, Seat
from crewlet.seats.allotment import advertised, claim_order, is_fleet_full, room, shed_order, unwanted
from crewlet.seats.noderow import ROLES
from crewlet.seats.placement import NodeRow, Plan, plan

proves = pytest.mark.proves

ALL_ROLES = frozenset(ROLES)
CORE_ROLES = ALL_ROLES - {"seats"}


def seats(*handles: str, node: str | None = None, labels: dict[str, str] | None = None) -> list[Seat]:
    placement = Placement(node, tuple(sorted((labels or {}).items())))
    return [Seat(handle, placement=placement) for handle in handles]


def nodes(*ids: str, labels: dict[str, str] | None = None) -> list[NodeRow]:
    return [NodeRow(node_id, labels=labels or {}) for node_id in ids]


def rooms(made: Plan, running: list[str], stuck: list[str] | None = None) -> list[int]:
    return list(room(made, running, stuck or []).values())


@pytest.fixture
def satellite() -> Plan:
    company = [*seats("aaron", "bob", "carl"), *seats("zed", node="sat-zed")]
    return plan(nodes("sat-zed", "core-1", "core-2"), company, NodeRow("sat-zed"))


@proves("PL-01")
def test_a_share_bounds_its_own_group_only() -> None:
    company = [*seats(*(f"p{n}" for n in range(9)), node="big"), *seats("free")]
    rows = nodes("big", "one", "two")
    assert [plan(rows, company, me).capacity for me in rows] == [10, 1, 1]


@proves("PL-02")
@pytest.mark.parametrize(
    ("running", "expected"),
    [([], [1, 1]), (["aaron", "bob"], [1, -1]), (["zed", "carl"], [0, 0]), (["gone"], [1, 1])],
)
def test_room_is_kept_for_each_group(satellite: Plan, running: list[str], expected: list[int]) -> None:
    assert rooms(satellite, running) == expected


@proves("PL-03")
@pytest.mark.parametrize(
    ("stuck", "running", "expected"),
    [
        (["gone"], [], [1, 0]),
        (["gone"], ["aaron"], [1, -1]),
        (["zed"], [], [0, 1]),
        (["aaron"], ["bob"], [1, -1]),
        (["aaron", "bob", "carl"], ["zed"], [-1, 0]),
        (["x", "y", "z"], ["zed"], [-1, 0]),
    ],
)
def test_stuck_seats_are_charged_first(
    satellite: Plan, stuck: list[str], running: list[str], expected: list[int]
) -> None:
    assert rooms(satellite, running, stuck) == expected


@proves("PL-04")
def test_a_process_knows_itself_better_than_the_row_it_left_behind() -> None:
    company = seats("a", labels={"zone": "eu"})
    rows = [NodeRow("n", roles=CORE_ROLES, labels={"zone": "us"}), *nodes("m", labels={"zone": "eu"})]
    made = plan(rows, company, NodeRow("n", labels={"zone": "eu"}))
    assert (made.nodes, made.seat_nodes, made.groups[0].nodes) == (2, 2, 2)
    assert [seat.handle for seat in made.eligible] == ["a"]


@proves("PL-06")
def test_an_empty_label_value_asks_for_the_key() -> None:
    company = seats("a", labels={"zone": ""})
    without, empty, other = NodeRow("n"), NodeRow("n", labels={"zone": ""}), NodeRow("n", labels={"zone": "eu"})
    assert [bool(plan([me], company, me).eligible) for me in (without, empty, other)] == [False, True, False]


@proves("PL-08")
def test_different_placements_are_different_groups_and_the_order_of_labels_is_none() -> None:
    placements = [
        Placement(labels=(("a", "b"),)),
        Placement(labels=(("a=b", "c"),)),
        Placement(labels=(("a", "b=c"),)),
        Placement(node="a"),
        Placement(node="a", labels=(("a", "b"),)),
    ]
    company = [Seat(f"s{n}", placement=placement) for n, placement in enumerate(placements)]
    assert len(plan(nodes("n"), company, NodeRow("n")).groups) == 5
    one, other = Placement(labels=(("a", "1"), ("b", "2"))), Placement(labels=(("b", "2"), ("a", "1")))
    same = [Seat("x", placement=one), Seat("y", placement=other), Seat("z", placement=one)]
    (group,) = plan(nodes("n"), same, NodeRow("n")).groups
    assert group.handles == ("x", "y", "z")


def _placement(node: str | None, labels: dict[str, str]) -> Placement:
    return Placement(node, tuple(sorted(labels.items())))


_labels = st.fixed_dictionaries({}, optional={key: st.sampled_from(["", "a", "b"]) for key in ("zone", "gpu")})
_nodes = st.lists(st.tuples(_labels, st.booleans()), min_size=1, max_size=6)
_placements = st.builds(_placement, st.none() | st.sampled_from([f"n{n}" for n in range(8)]), _labels)


def _random_labels(chance: random.Random) -> dict[str, str]:
    return {key: chance.choice(("", "a", "b")) for key in ("zone", "gpu") if chance.random() < 0.5}


def _random_fleet(chance: random.Random) -> tuple[list[NodeRow], list[Seat]]:
    rows = [
        NodeRow(f"n{n}", CORE_ROLES if chance.random() < 0.2 else ALL_ROLES, _random_labels(chance))
        for n in range(chance.randint(1, 6))
    ]
    pins = [None, None, *(f"n{n}" for n in range(8))]
    company = [
        Seat(f"s{n}", placement=_placement(chance.choice(pins), _random_labels(chance) if n % 2 else {}))
        for n in range(chance.randint(0, 16))
    ]
    return rows, company


@proves("PL-09")
@pytest.mark.parametrize("first", range(0, 500, 100))
def test_greedy_claims_cover_every_seat_but_the_unplaceable(first: int) -> None:
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        rows, company = _random_fleet(chance)
        held: dict[str, NodeRow] = {}
        for me in chance.sample(rows, len(rows)):
            made = plan(rows, company, me)
            mine: list[str] = []
            for handle in claim_order(made, mine):
                placement = made.placement_of(handle)
                if handle not in held and placement is not None and room(made, mine)[placement] > 0:
                    held[handle] = me
                    mine.append(handle)
            assert all(left >= 0 for left in room(made, mine).values()), seed
            assert shed_order(made, mine, [], lambda _: False) == [], seed
        by_handle = {seat.handle: seat.placement for seat in company}
        assert all(by_handle[handle].matches(row.node_id, row.labels) for handle, row in held.items()), seed
        assert all(row.places_seats for row in held.values()), seed
        unplaceable = {seat.handle for seat in plan(rows, company, rows[0]).unplaceable}
        assert set(by_handle) - set(held) == unplaceable, seed


@proves("PL-11")
def test_groups_are_ordered_by_how_few_may_run_them() -> None:
    rows = [NodeRow("a", labels={"x": "1", "y": "1"}), NodeRow("b", labels={"y": "1"}), NodeRow("c")]
    company = [
        *seats("any"),
        *seats("two", labels={"y": "1"}),
        *seats("one-b", node="a"),
        *seats("one-a", labels={"x": "1"}),
    ]
    made = plan(rows, company, rows[0])
    assert [group.handles[0] for group in made.groups] == ["one-b", "one-a", "two", "any"]
    alone = plan(rows[:1], company, rows[0])
    assert [group.handles[0] for group in alone.groups] == ["two", "one-b", "one-a", "any"]


@proves("PL-13")
def test_nodes_that_run_no_seats_are_left_out_of_the_shares() -> None:
    three = nodes("a", "b", "c")
    assert plan(three, seats("1", "2", "3", "4", "5"), three[0]).capacity == 2
    mixed = [*nodes("a", "b"), NodeRow("x", roles=CORE_ROLES), NodeRow("y", roles=CORE_ROLES)]
    made = plan(mixed, seats("1", "2", "3", "4"), mixed[0])
    assert (made.capacity, made.seat_nodes, made.nodes) == (2, 2, 4)


@proves("PL-14")
def test_a_node_that_runs_no_seats_plans_none_and_calls_none_unplaceable() -> None:
    core = NodeRow("core", roles=CORE_ROLES)
    made = plan([core, *nodes("a")], [*seats("x"), *seats("y", node="a")], core)
    assert (made.capacity, made.eligible, made.unplaceable, made.placeable) == (0, (), (), 2)
    assert claim_order(made, []) == []


@proves("PL-16")
def test_a_row_without_an_id_is_ignored_and_an_id_counts_once() -> None:
    me = NodeRow("a")
    made = plan([me, NodeRow(""), *nodes("b", "b")], seats("1", "2"), me)
    assert (made.nodes, made.seat_nodes, made.capacity) == (2, 2, 1)


@proves("PL-18")
def test_the_eligible_seats_keep_the_documents_order() -> None:
    company = [Seat(f"s{n}", placement=Placement(node="n" if n % 3 else None)) for n in range(50)]
    expected = [seat.handle for seat in company]
    for _ in range(20):
        assert [seat.handle for seat in plan(nodes("m", "n"), company, NodeRow("n")).eligible] == expected


def test_a_withdrawn_node_places_nothing_and_its_seats_are_divided_without_it() -> None:
    company = [*seats("a", "b", "c", "d"), *seats("pinned", node="gone")]
    rows = [NodeRow("gone", seats_withdrawn=True), *nodes("x", "y")]
    made = plan(rows, company, rows[1])
    assert (made.capacity, made.seat_nodes, made.nodes) == (2, 2, 3)
    assert [seat.handle for seat in made.unplaceable] == ["pinned"]
    assert plan(rows, company, rows[0]).capacity == 0


def test_before_any_roster_a_fleet_of_one_is_assumed_and_nothing_is_unplaceable() -> None:
    company = [*seats("a", "b"), *seats("elsewhere", node="other")]
    made = plan(None, company, NodeRow("me"))
    assert (made.capacity, made.unplaceable, made.nodes) == (2, (), 1)
    assert not is_fleet_full(made, ["a", "b"])


def test_a_plan_counts_itself_though_no_row_lists_it() -> None:
    made = plan(nodes("b"), seats("1", "2"), NodeRow("a"))
    assert (made.nodes, made.capacity) == (2, 1)


def test_claims_go_to_the_most_constrained_groups_first_and_to_hinted_seats_in_them() -> None:
    company = [*seats("f0", "f1", "f2"), *seats("eu0", "eu1", labels={"zone": "eu"})]
    rows = [*nodes("e1", "e2", labels={"zone": "eu"}), NodeRow("c")]
    made = plan(rows, company, rows[0])
    assert claim_order(made, [], hinted=["f2", "eu1"]) == ["eu1", "eu0", "f2", "f0", "f1"]
    assert claim_order(made, ["eu0"], hinted=["f2"]) == ["f2", "f0", "f1"]
    assert claim_order(made, ["f0"], ["eu0"]) == []


def test_excess_goes_back_least_constrained_first_and_idle_before_busy() -> None:
    company = [*seats("z0", "z1", labels={"zone": "z"}), *seats("a0", "a1", "a2", "a3")]
    rows = [*nodes("s1", "s2", labels={"zone": "z"}), NodeRow("core")]
    made = plan(rows, company, rows[0])
    assert shed_order(made, ["z0", "z1", "a0", "a1", "a2"], [], lambda handle: handle == "a0") == ["a1", "z0"]


@proves("SW-18")
def test_a_stuck_seat_squeezes_its_own_group() -> None:
    company = [*seats("z0", "z1", labels={"zone": "z"}), *seats("a0", "a1")]
    rows = [*nodes("s1", "s2", labels={"zone": "z"})]
    made = plan(rows, company, rows[0])
    assert made.capacity == 2
    assert shed_order(made, ["z1", "a0", "a1"], ["z0"], lambda _: False) == ["a0", "z1"]


def test_seats_that_should_not_be_here_are_named_with_the_reason() -> None:
    made = plan(nodes("a", "b"), [*seats("ok"), *seats("moved", node="b")], NodeRow("a"))
    assert unwanted(made, ["ok", "moved", "gone"]) == {"gone": "role_gone", "moved": "placement"}
    assert set(unwanted(made, ["ok", "gone"], is_withdrawn=True).values()) == {"unserviceable"}


def test_the_fleet_is_full_when_the_counts_cover_every_placeable_seat() -> None:
    company = [*seats("a", "b", "c"), *seats("nobodys", node="absent")]
    full = [NodeRow("m", seats_held=1), NodeRow("n", seats_held=1)]
    me = NodeRow("me", seats_held=9)
    made = plan([*full, me], company, me)
    assert is_fleet_full(made, ["a"])
    assert not is_fleet_full(made, [])
    assert not is_fleet_full(made, ["nobodys", "gone"])
    assert is_fleet_full(made, [], ["b"])
    assert advertised(made, ["a", "nobodys"], ["b", "gone"]) == 2
    unread = plan([full[0], replace(full[1], seats_held=0), me], company, me)
    assert not is_fleet_full(unread, ["a"])


@settings(max_examples=60, deadline=None)
@given(_nodes, _placements)
def test_matching_by_index_judges_as_the_placement_does(
    fleet: list[tuple[dict[str, str], bool]], placement: Placement
) -> None:
    rows = [NodeRow(f"n{n}", labels=labels) for n, (labels, _) in enumerate(fleet)]
    made = plan(rows, [Seat("s", placement=placement)], rows[0])
    assert made.groups[0].nodes == sum(placement.matches(row.node_id, row.labels) for row in rows)
    assert made.groups[0].is_mine == placement.matches(rows[0].node_id, rows[0].labels)


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_a_plan_after_another_is_the_same_as_one_made_anew(first: int) -> None:
    kept = 0
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        rows, company = _random_fleet(chance)
        me, made = rows[0], None
        for _ in range(8):
            match chance.randrange(6):
                case 0 if len(rows) > 1:
                    rows.pop()
                case 1:
                    rows.append(NodeRow(f"m{chance.randrange(3)}", labels=_random_labels(chance)))
                case 2:
                    rows = [replace(row, seats_held=chance.randrange(9)) for row in rows]
                case 3:
                    me = replace(me, seats_withdrawn=not me.seats_withdrawn)
                case 4:
                    company = [replace_placement(seat, chance) for seat in company]
                case _:
                    pass
            seen = None if chance.random() < 0.1 else rows
            before, made = made, plan(seen, company, me, made)
            anew = plan(seen, company, me)
            assert made == anew, seed
            kept += before is not None and made.groups is before.groups
    assert kept > 100


def replace_placement(seat: Seat, chance: random.Random) -> Seat:
    return Seat(seat.handle, placement=_placement(None, _random_labels(chance)))
