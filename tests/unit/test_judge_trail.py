"""Lines of evidence as programs write them, and the runs they make up."""

import json
from pathlib import Path
from typing import Any

import pytest

from crewlet.testing.demo.trail import BadLine, parse_line, runs_of


def text(phase: str, at: float = 5.0, **changed: Any) -> bytes:
    line = {"seat": "s", "trigger": "m1 m2", "run": "r", "owner": "n:a", "epoch": 3, "wall": 1.0, "boottime": at}
    return json.dumps({**line, "phase": phase, **changed}).encode()


def test_a_line_names_all_its_triggers_and_what_it_sent() -> None:
    line = parse_line(text("sent x-1"))
    assert (line.triggers, line.phase, line.sent_id) == (("m1", "m2"), "sent", "x-1")


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", text("pause"), text("sent"), text("tick 4"), text("end", epoch="3")])
def test_a_line_that_no_program_writes_is_refused(bad: bytes) -> None:
    with pytest.raises(BadLine):
        parse_line(bad)


def test_a_run_lasts_from_its_begin_to_its_last_line() -> None:
    lines = [parse_line(text(phase, at)) for phase, at in (("begin", 5.0), ("sent x", 5.1), ("tick", 5.2))]
    (run,) = runs_of(lines)
    assert (run.began_at, run.last_at, run.is_ended, run.sent, run.node) == (5.0, 5.2, False, ("x",), "n")
    (run,) = runs_of([*lines, parse_line(text("end", 5.3))])
    assert (run.last_at, run.is_ended) == (5.3, True)


def test_a_growing_file_is_read_line_by_whole_line(tmp_path: Path) -> None:
    evidence = pytest.importorskip("crewlet.testing.demo.evidence")
    trails = evidence.Trails(tmp_path)
    file = tmp_path / "s.jsonl"
    file.write_bytes(text("begin") + b"\n" + text("tick")[:20])
    assert [line.phase for line in trails.read()["s"]] == ["begin"]
    file.write_bytes(text("begin") + b"\n" + text("tick") + b"\nrubbish\n")
    assert [line.phase for line in trails.read()["s"]] == ["begin", "tick"]
    assert len(trails.broken) == 1 and "seat s" in trails.broken[0]
