"""Short simulations that must hold every promise; the long search is `make sim`."""

import pytest

from crewlet.testing.sim import BY_NAME, KINDS, SimOptions, simulate


@pytest.mark.parametrize("seed", range(1000, 1100))
def test_three_nodes_and_six_seats_keep_their_promises_for_ten_minutes(seed: int) -> None:
    report = simulate(SimOptions(seed, minutes=10.0))
    assert (report.code, report.finding) == (0, "")


@pytest.mark.parametrize("seed", range(2000, 2002))
def test_five_nodes_and_twelve_seats_keep_their_promises_under_every_fault(seed: int) -> None:
    report = simulate(SimOptions(seed, nodes=5, seats=12, minutes=3.0, faults=KINDS))
    assert (report.code, report.finding) == (0, "")


@pytest.mark.parametrize("seed", range(5000, 5004))
def test_free_seats_are_taken_within_a_sweep_and_paused_ones_stay_still_while_nodes_come_and_go(seed: int) -> None:
    report = simulate(SimOptions(seed, seats=12, minutes=5.0, faults=("stop", "crash", "pausing")))
    assert (report.code, report.finding) == (0, "")


@pytest.mark.parametrize("kind", [*KINDS, *BY_NAME])
def test_each_fault_alone_breaks_nothing(kind: str) -> None:
    report = simulate(SimOptions(3000, minutes=1.5, faults=(kind,)))
    assert (report.code, report.finding) == (0, "")
    assert report.counts["fault"] > 0


def test_a_fleet_of_one_with_nothing_going_wrong_finishes_all_its_mail() -> None:
    report = simulate(SimOptions(4000, nodes=1, seats=4, minutes=3.0, faults=()))
    assert (report.code, report.finding) == (0, "")
    assert report.counts["mail"] == report.counts["ack"] == report.counts["ledger"]


@pytest.mark.parametrize(
    "options",
    [
        # A process frozen in the pause before a repeated publish sent it after its lease had lapsed (P8).
        SimOptions(127, minutes=6.0, faults=("pause", "outage", "stall")),
        # The record of a finished turn was tried again after the seat's next owner had taken over (P3).
        SimOptions(131, minutes=6.0, faults=("pause", "outage", "stall")),
    ],
    ids=["publish repeated after the fence closed", "record repeated after the fence closed"],
)
def test_what_was_found_once_stays_mended(options: SimOptions) -> None:
    report = simulate(options)
    assert (report.code, report.finding) == (0, "")
