"""The simulator finds bugs that are there: each planted one at its pinned seed, which is clean without it."""

import pytest
from pins import PINS

from crewlet.cli.sim import replay_command
from crewlet.testing.sim import SimOptions, simulate
from crewlet.testing.sim.mutants import Catch, hunt, names


@pytest.mark.parametrize(("name", "catch"), PINS.items(), ids=list(PINS))
def test_a_planted_bug_is_caught(name: str, catch: Catch) -> None:
    first = catch.options.seed
    report = hunt(name, catch.options, range(first, first + catch.seeds))
    assert report is not None
    assert report.code == catch.code, report.finding
    assert report.finding.startswith(catch.promise)


@pytest.mark.parametrize("options", list(dict.fromkeys(catch.options for catch in PINS.values())), ids=replay_command)
def test_a_pinned_simulation_is_clean_without_its_bug(options: SimOptions) -> None:
    report = simulate(options)
    assert (report.code, report.finding) == (0, "")


def test_only_bugs_that_exist_are_pinned() -> None:
    assert set(PINS) <= set(names())
