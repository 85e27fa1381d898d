"""The docs desk's programs as processes that speak protocol v1 with a node played by the test."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crewlet.testing.demo.evidence import Trails
from crewlet.testing.demo.trail import runs_of

FOLDER = Path(__file__).parents[2] / "src" / "crewlet" / "examples" / "docs_desk"
DOCUMENT = "# Title\n\nSee [there](other.md#nowhere) and [gone](gone.md).\n\nA sentence. Another one.\n"

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Ended:
    """What a program did: exit code, mail it sent, outcome, and its standard error."""

    code: int
    sent: Sequence[Mapping[str, str]]
    outcome: Mapping[str, str] | None
    error: str


@dataclass
class Node:
    """Runs one turn of a program and answers its mail."""

    root: Path
    env: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        (self.root / "documents").mkdir(exist_ok=True)
        (self.root / "documents" / "other.md").write_text("# Other\n")
        self.env = {
            "DOCS_ROOT": str(self.root / "documents"),
            "DESK_STORE": str(self.root / "desk"),
            "EVIDENCE_DIR": str(self.root / "evidence"),
            "LINK_SEATS": "links-1 links-2",
            "PROSE_SEATS": "prose-1 prose-2",
            "EDITOR_SEATS": "editor-1 editor-2",
        }

    def start(self, program: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-S", str(FOLDER / program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **self.env},
        )

    def turn(
        self, program: str, seat: str, body: str, *, mail_id: str = "m1", epoch: int = 1, refuse: bool = False
    ) -> Ended:
        with self.start(program) as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            self.ask(process, seat, body, mail_id=mail_id, epoch=epoch)
            sent: list[Mapping[str, str]] = []
            outcome: Mapping[str, str] | None = None
            for said in _lines(process):
                if "send" in said:
                    sent.append(said["send"])
                    reason = {"refused": {"reason": "no such seat"}}
                    answer = reason if refuse else {"sent": {"id": f"{mail_id}-{len(sent)}"}}
                    process.stdin.write(json.dumps(answer).encode() + b"\n")
                    process.stdin.flush()
                elif "outcome" in said:
                    outcome = said
            return Ended(process.wait(60), sent, outcome, process.stderr.read().decode())

    def ask(self, process: subprocess.Popen[bytes], seat: str, body: str, *, mail_id: str, epoch: int) -> None:
        mail = {
            "id": mail_id,
            "type": "external_notification",
            "source": "person",
            "subject": "guide/a.md",
            "body": body,
        }
        turn = {
            "v": 1,
            "seat": seat,
            "turn_id": "t1",
            "work_key": "w1",
            "triggers": [mail_id],
            "mail": [mail],
            "term": {"resource": f"seat:{seat}", "owner": f"n{epoch}:x", "epoch": epoch, "good_until": None},
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(turn).encode() + b"\n")
        process.stdin.flush()


def _lines(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def check_both(node: Node) -> tuple[str, str]:
    """What the two checkers send to the editor about the document."""
    taken = node.turn("intake.py", "intake-1", DOCUMENT)
    assert [mail["to"].split("-")[0] for mail in taken.sent] == ["links", "prose"]
    (found,) = node.turn("links.py", taken.sent[0]["to"], taken.sent[0]["body"]).sent
    (read,) = node.turn("prose.py", taken.sent[1]["to"], taken.sent[1]["body"]).sent
    assert found["to"] == read["to"] and found["to"].startswith("editor-")
    return found["body"], read["body"]


def test_a_document_becomes_a_report_with_what_is_really_wrong_with_it(node: Node) -> None:
    found, read = check_both(node)
    first = node.turn("editor.py", "editor-1", read, mail_id="m2")
    assert first.outcome == {"outcome": "delivered", "detail": "guide/a.md: waiting for links"}
    assert not (node.root / "desk" / "reports").exists()
    assert node.turn("editor.py", "editor-1", found, mail_id="m3").code == 0
    report = (node.root / "desk" / "reports" / "guide" / "a.md").read_text()
    assert "line 3, missing-file: `other.md#nowhere`" in report
    assert "line 3, missing-file: `gone.md`" in report
    assert "| sentences | 3 |" in report


def test_a_turn_run_again_sends_the_same_mail_and_writes_the_same_report(node: Node) -> None:
    found, read = check_both(node)
    assert check_both(node) == (found, read)
    reports: list[bytes] = []
    for epoch in (1, 2):
        for body in (found, read):
            assert node.turn("editor.py", "editor-1", body, epoch=epoch).code == 0
        reports.append((node.root / "desk" / "reports" / "guide" / "a.md").read_bytes())
    assert reports[0] == reports[1]


def test_an_editor_of_an_earlier_tenure_writes_nothing_and_reports_no_outcome(node: Node) -> None:
    found, read = check_both(node)
    node.turn("editor.py", "editor-1", found, epoch=2)
    stale = node.turn("editor.py", "editor-1", read, epoch=1)
    assert (stale.code, stale.outcome) == (75, None)
    assert "epoch 2" in stale.error
    assert not (node.root / "desk" / "reports").exists()


def test_every_run_leaves_evidence_of_its_whole_length(node: Node) -> None:
    node.env["DWELL_S"] = "0.35"
    node.turn("intake.py", "intake-1", DOCUMENT, epoch=4)
    trails = Trails(node.root / "evidence")
    lines = trails.read()["intake-1"]
    (run,) = runs_of(lines)
    assert trails.broken == []
    assert [line.phase for line in lines if line.phase != "tick"] == ["begin", "sent", "sent", "end"]
    assert run.sent == ("m1-1", "m1-2")
    assert (run.triggers, run.owner, run.epoch, run.is_ended) == (("m1",), "n4:x", 4, True)
    assert run.last_at - run.began_at >= 0.35
    assert sum(line.phase == "tick" for line in lines) >= 3


def test_a_run_that_is_killed_has_no_end(node: Node) -> None:
    node.env["DWELL_S"] = "60"
    trails = Trails(node.root / "evidence")
    with node.start("prose.py") as process:
        node.ask(process, "prose-1", json.dumps({"document": "a.md", "text": "x"}), mail_id="m1", epoch=1)
        deadline = time.monotonic() + 60
        while len(trails.read().get("prose-1", ())) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    (run,) = runs_of(trails.read()["prose-1"])
    assert not run.is_ended


def test_mail_that_the_node_refuses_blocks_the_work(node: Node) -> None:
    ended = node.turn("intake.py", "intake-1", DOCUMENT, refuse=True)
    assert ended.code == 0
    assert ended.outcome is not None and ended.outcome["outcome"] == "blocked"
    assert "no such seat" in ended.outcome["detail"]


def test_a_node_that_goes_away_leaves_the_turn_without_an_outcome(node: Node) -> None:
    with node.start("intake.py") as process:
        node.ask(process, "intake-1", DOCUMENT, mail_id="m1", epoch=1)
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert not any("outcome" in said for said in _lines(process))
        assert process.wait(60) == 75


def test_a_program_started_by_hand_says_what_it_is_for(node: Node) -> None:
    with node.start("editor.py") as process:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 2
        assert b"protocol v1" in error
