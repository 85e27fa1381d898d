"""What a fleet would settle to, held against the decisions that real sweeps make."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crewlet.company.model import Placement, Seat
from crewlet.seats.allotment import claim_order, shed_order, unwanted
from crewlet.seats.forecast import Forecast, forecast, lose, why_unplaceable
from crewlet.seats.noderow import ROLES, NodeRow
from crewlet.seats.placement import plan

NO_SEATS = frozenset(ROLES) - {"seats"}
EU, US = {"zone": "eu"}, {"zone": "us"}

_labels = st.fixed_dictionaries({}, optional={key: st.sampled_from(["a", "b"]) for key in ("zone", "gpu")})
_roles = st.sampled_from([frozenset(ROLES), NO_SEATS])
_rows = st.lists(st.tuples(_roles, _labels), min_size=1, max_size=6).map(
    lambda made: [NodeRow(f"n{number}", roles, labels) for number, (roles, labels) in enumerate(made)]
)


def _placement(node: str | None, labels: dict[str, str]) -> Placement:
    return Placement(node, tuple(sorted(labels.items())))


_placements = st.builds(_placement, st.none() | st.sampled_from([f"n{n}" for n in range(7)]), _labels)
_companies = st.lists(_placements, max_size=60).map(
    lambda placements: [Seat(f"s{number}", placement=each) for number, each in enumerate(placements)]
)


def seats(*handles: str, node: str | None = None, labels: dict[str, str] | None = None) -> list[Seat]:
    return [Seat(handle, placement=_placement(node, labels or {})) for handle in handles]


def holders(made: Forecast) -> dict[str, str]:
    return {handle: node_id for node_id, handles in made.held.items() for handle in handles}


def assert_at_rest(rows: Sequence[NodeRow], company: Sequence[Seat], held: dict[str, str]) -> None:
    """No node's next sweep would give anything back, or find a seat that it may still claim; all else is nobody's."""
    unplaceable: set[str] = {seat.handle for seat in company}
    for row in rows:
        division = plan(rows, company, row)
        mine = [handle for handle, node_id in held.items() if node_id == row.node_id]
        assert unwanted(division, mine) == {}
        assert shed_order(division, mine, [], lambda _: False) == []
        assert not set(claim_order(division, mine)) - held.keys()
        unplaceable &= {seat.handle for seat in division.unplaceable}
    assert held.keys() == {seat.handle for seat in company} - unplaceable


@settings(max_examples=150, deadline=None)
@given(_rows, _companies)
def test_a_forecast_is_a_state_in_which_the_sweeps_rest(rows: list[NodeRow], company: list[Seat]) -> None:
    made = forecast(rows, company)
    assert_at_rest(rows, company, holders(made))
    for row in rows:
        division = plan(rows, company, row)
        assert made.at_most[row.node_id] == division.capacity
        assert [seat.handle for seat in division.unplaceable] == [seat.handle for seat in made.plan.unplaceable]


@settings(max_examples=150, deadline=None)
@given(_rows, _companies, st.sets(st.sampled_from([f"n{n}" for n in range(6)]), min_size=1, max_size=3))
def test_after_a_loss_the_survivors_rest_again_and_only_the_lost_seats_moved(
    rows: list[NodeRow], company: list[Seat], gone: set[str]
) -> None:
    made = forecast(rows, company)
    loss = lose(made, gone)
    before = holders(made)
    lost = {handle for handle, node_id in before.items() if node_id in gone}
    assert {*loss.moves, *(seat.handle for seat in loss.stranded)} == lost
    survivors = [row for row in rows if row.node_id not in gone]
    if survivors:
        after = {handle: node_id for handle, node_id in before.items() if handle not in lost} | dict(loss.moves)
        assert_at_rest(survivors, company, after)


@settings(max_examples=150, deadline=None)
@given(_rows, _placements)
def test_a_reason_is_given_exactly_for_what_nobody_may_run(rows: list[NodeRow], placement: Placement) -> None:
    division = plan(rows, [Seat("s", placement=placement)], rows[0])
    assert bool(why_unplaceable(placement, rows)) == bool(division.unplaceable)


@pytest.mark.parametrize(
    ("placement", "rows", "why"),
    [
        (Placement("x"), [NodeRow("a")], "there is no node x"),
        (Placement("a", (("zone", "eu"),)), [NodeRow("a"), NodeRow("b", labels=EU)], "a is not labelled zone=eu"),
        (Placement(labels=(("zone", "eu"),)), [NodeRow("a", labels=US)], "no node is labelled zone=eu"),
        (
            Placement(labels=(("gpu", "1"), ("zone", "eu"))),
            [NodeRow("a", labels=EU), NodeRow("b", labels={"gpu": "1"})],
            "no single node has all of these labels",
        ),
        (Placement(), [NodeRow("a", NO_SEATS)], "no node takes seats"),
        (Placement(), [], "no node is left"),
        (Placement("a"), [NodeRow("a", NO_SEATS), NodeRow("b")], "a would match, but takes no seats"),
        (
            Placement(labels=(("zone", "eu"),)),
            [NodeRow("a", NO_SEATS, EU), NodeRow("b", NO_SEATS, EU), NodeRow("c", NO_SEATS, EU), NodeRow("d")],
            "a, b and c would match, but take no seats",
        ),
    ],
)
def test_the_reason_names_what_is_missing(placement: Placement, rows: list[NodeRow], why: str) -> None:
    assert why_unplaceable(placement, rows) == why


def test_nodes_take_turns_at_four_seats_each() -> None:
    made = forecast([NodeRow("a"), NodeRow("b"), NodeRow("c")], seats(*(f"s{n}" for n in range(10))))
    assert made.held == {"a": ["s0", "s1", "s2", "s3"], "b": ["s4", "s5", "s6", "s7"], "c": ["s8", "s9"]}
    assert (made.at_most, made.sweeps) == ({"a": 4, "b": 4, "c": 4}, 1)


def test_a_loss_counts_the_sweeps_of_the_survivor_that_takes_most() -> None:
    company = [*seats(*(f"p{n}" for n in range(9)), labels=EU), *seats("x", "y")]
    made = forecast([NodeRow("a", labels=EU), NodeRow("b", labels=EU), NodeRow("c")], company)
    loss = lose(made, ["a"])
    # Six are a's, its share of both groups; c is at its own share of the only group that it matches.
    assert (set(loss.moves.values()), len(loss.moves), loss.stranded, loss.sweeps) == ({"b"}, 6, (), 2)
    both = lose(made, ["a", "b"])
    assert both.nodes == ("a", "b") and {seat.handle for seat in both.stranded} == {f"p{n}" for n in range(9)}


def test_ten_thousand_seats_on_a_hundred_nodes_are_all_held_and_nobody_is_over_its_share() -> None:
    company = [Seat(f"s{n}", placement=Placement(labels=(("zone", f"z{n % 10}"),))) for n in range(10_000)]
    rows = [NodeRow(f"n{n}", labels={"zone": f"z{n % 10}"}) for n in range(100)]
    made = forecast(rows, company)
    assert {len(handles) for handles in made.held.values()} == {100} == set(made.at_most.values())
    assert len(lose(made, ["n0"]).moves) == 100


@pytest.mark.parametrize("seats_each", [0.5, 1, 1.5])
def test_a_loss_looks_at_those_nodes_alone_that_may_take_what_it_frees(
    seats_each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = forecast([NodeRow(f"n{n}") for n in range(200)], seats(*(f"s{n}" for n in range(int(200 * seats_each)))))
    looked_at: list[str] = []
    matches = Placement.matches

    def noted(self: Placement, node_id: str, labels: Mapping[str, str]) -> bool:
        looked_at.append(node_id)
        return matches(self, node_id, labels)

    monkeypatch.setattr(Placement, "matches", noted)
    losses = [lose(made, [row.node_id]) for row in made.rows]
    assert sum(len(loss.moves) for loss in losses) == len(made.seats)
    assert len(looked_at) <= 3 * len(losses)
