"""The simulator finds bugs that are there: each planted one at its pinned seed, which is clean without it."""

import pytest
from pins import PINS

from crewlet.testing.sim import simulate
from crewlet.testing.sim.mutants import Catch, names, planted


@pytest.mark.parametrize(("name", "catch"), PINS.items(), ids=list(PINS))
def test_a_planted_bug_is_caught(name: str, catch: Catch) -> None:
    with planted(name):
        report = simulate(catch.options)
    assert report.code == catch.code, report.finding
    assert report.finding.startswith(catch.promise)


def test_the_pinned_simulations_are_clean_without_their_bugs() -> None:
    clean = {catch.options: None for catch in PINS.values()}
    assert [report.finding for report in map(simulate, clean) if report.code] == []


def test_only_bugs_that_exist_are_pinned() -> None:
    assert set(PINS) <= set(names())
