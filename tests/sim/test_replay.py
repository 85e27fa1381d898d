"""The same seed gives the same history, whatever the interpreter does with its hashes."""

import json
import os
import subprocess
import sys

import pytest

from crewlet.testing.sim import SAFETY, SimOptions, simulate
from crewlet.testing.sim.mutants import planted

_SIM = [sys.executable, "-m", "crewlet.cli", "sim", "--json", "--nodes", "3", "--seats", "6", "--hours", "0.05"]


def _history(seed: int, hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([*_SIM, "--seed", str(seed)], env=env, capture_output=True, text=True, timeout=100, check=True)
    return json.loads(run.stdout)["history"]


def test_a_seed_gives_one_history_under_different_hash_seeds() -> None:
    assert _history(3, "1") == _history(3, "4711")


def test_a_seed_gives_one_history_after_another_simulation() -> None:
    once = simulate(SimOptions(11, minutes=1.0))
    simulate(SimOptions(12, minutes=0.5))
    again = simulate(SimOptions(11, minutes=1.0))
    assert (once.hash, once.counts) == (again.hash, again.counts)
    assert simulate(SimOptions(12, minutes=1.0)).hash != once.hash


def test_a_finding_ends_the_command_with_its_code_and_prints_what_replays_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from crewlet.cli import main

    with planted("ledger not written"):
        assert main(["sim", "--seed", "0", "--hours", "0.05", "--faults", "none"]) == SAFETY
    told = capsys.readouterr().out
    assert "P4 broken at" in told
    assert "replay: crewlet sim --seed 0 --nodes 3 --seats 6 --hours 0.05 --faults none" in told


def test_a_fault_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from crewlet.cli import main

    assert main(["sim", "--faults", ""]) == main(["sim", "--faults", ","]) == main(["sim", "--hours", "inf"]) == 2
    assert main(["sim", "--faults", "gremlins"]) == 2
    assert "the kinds are latency" in " ".join(capsys.readouterr().err.replace("│", " ").split())
