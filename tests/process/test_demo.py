"""`crewlet demo` as a user runs it: it proves what it claims, says what is wrong, and leaves no process behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.process, pytest.mark.cluster, pytest.mark.timeout(240)]

DOCS = Path(__file__).parents[2] / "docs"
FIELDS = [
    "ok",
    "nodes",
    "seats",
    "sent",
    "finished",
    "lost",
    "ran_twice",
    "rerun_after_cut",
    "owners_at_once_max",
    "stale_epoch_writes",
    "takeover_s",
    "broker_restarts",
    "lease_ttl_s",
    "elapsed_s",
]


def demo(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "crewlet.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {}), "TMPDIR": str(cwd)},
    )


def left_behind(folder: Path) -> list[str]:
    """Processes that were started from, or work in, a folder."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                words = " ".join(process.cmdline())
                if str(folder) in words or process.cwd().startswith(str(folder)):
                    found.append(words)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def read_until(process: subprocess.Popen[str], is_it: Callable[[str], bool]) -> str:
    """Lines of its output up to the one looked for."""
    assert process.stdout is not None
    for line in process.stdout:
        if is_it(line):
            return line
    raise AssertionError("the demo ended before it said so")


def test_the_demo_proves_itself(tmp_path: Path) -> None:
    began = time.monotonic()
    with demo("--json", "--docs", str(DOCS), cwd=tmp_path) as process:
        output, progress = process.communicate(timeout=200)
    verdict = json.loads(output.splitlines()[-1])
    assert list(verdict) == FIELDS
    assert verdict["ok"], progress
    assert process.returncode == 0
    assert (verdict["nodes"], verdict["lost"], verdict["ran_twice"], verdict["stale_epoch_writes"]) == (3, 0, 0, 0)
    assert verdict["seats"] >= 12
    assert verdict["sent"] == verdict["finished"] > 50
    assert verdict["owners_at_once_max"] == 1
    assert verdict["broker_restarts"] == 2  # one member was restarted, one went with the parent of its node
    assert verdict["lease_ttl_s"] >= 10
    assert list(verdict["takeover_s"]) == ["killed", "parent_killed", "frozen"]
    assert all(took is not None for took in verdict["takeover_s"].values())
    assert verdict["elapsed_s"] <= time.monotonic() - began
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_folder(tmp_path: Path, number: signal.Signals) -> None:
    with demo(cwd=tmp_path) as process:
        read_until(process, lambda line: "three nodes start" in line)
        while len(left_behind(tmp_path)) < 6:  # three parents, and the first brokers and nodes
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        _, error = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "interrupted" in error
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_is_killed_takes_its_processes_with_it(tmp_path: Path) -> None:
    with demo(cwd=tmp_path) as process:
        read_until(process, lambda line: "three nodes start" in line)
        while len(left_behind(tmp_path)) < 6:
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
    deadline = time.monotonic() + 60
    while left := left_behind(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_a_fleet_that_cannot_start_is_not_proven_and_says_why(tmp_path: Path) -> None:
    with demo("--json", cwd=tmp_path, env={"CREWLET_NATS_SERVER": "/nowhere/nats-server"}) as process:
        output, progress = process.communicate(timeout=100)
    verdict = json.loads(output.splitlines()[-1])
    assert process.returncode == 1
    assert (list(verdict), verdict["ok"], verdict["sent"]) == (FIELDS, False, 0)
    assert re.search(r"WRONG: node n\d ended with exit code \d+: .*/nowhere/nats-server", progress)
    assert left_behind(tmp_path) == []


def test_a_folder_without_documents_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with demo("--docs", str(tmp_path), cwd=tmp_path) as process:
        output, error = process.communicate(timeout=100)
    assert (process.returncode, output) == (1, "")
    assert error == f"crewlet demo: {tmp_path} has no Markdown documents (*.md); give --docs another folder\n"
