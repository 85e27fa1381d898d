"""The company's duties, over the API and the command line."""

import json
from pathlib import Path

import pytest
from stub_node import STARTED, Served

from crewlet.cli import main
from crewlet.duties.frame import NotOnDuty
from crewlet.node.dutystatus import TickSnapshot
from crewlet.ports.errors import Unavailable

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def node(one_server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    one_server.node.reset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREWLET_URL", one_server.server.url)
    monkeypatch.delenv("CREWLET_API_TOKEN", raising=False)
    return one_server


def test_the_list_says_who_does_each_duty_and_how_it_went_here(node: Served, capsys: Capture) -> None:
    assert main(["duty", "list"]) == 0
    header, maintenance, scheduler = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["DUTY", "NODE", "SINCE"]
    assert maintenance.split()[:2] == ["maintenance", "n1"] and "1 mailbox retired" in maintenance
    assert scheduler.split()[:3] == ["scheduler", "-", "-"]
    assert main(["duty", "list", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["this_node"], answer["does_duties"]) == ("n1", True)
    assert answer["duties"][0]["expires_in"] == 1200.5 and "node" not in answer["duties"][1]


@pytest.mark.parametrize(
    ("tick", "code", "words"),
    [
        (TickSnapshot("done", "1 mailbox retired", STARTED), 0, "done: 1 mailbox retired"),
        (TickSnapshot("done", "", STARTED), 0, "there was nothing to do"),
        (TickSnapshot("running"), 0, "it goes on"),
        (TickSnapshot("held", "n2:cd", STARTED), 1, "Another node does this duty: n2:cd."),
        (TickSnapshot("unclaimed", "nobody answers", STARTED), 1, "not known who does this duty: nobody answers."),
        (TickSnapshot("failed", "the roster is unknown", STARTED), 1, "The duty failed: the roster is unknown."),
    ],
)
def test_a_tick_that_was_asked_for_says_how_it_ended(
    node: Served, capsys: Capture, tick: TickSnapshot, code: int, words: str
) -> None:
    node.node.commands.duties.next_tick = tick
    assert main(["duty", "run", "maintenance"]) == code
    said = capsys.readouterr()
    assert words in (said.err if code else said.out) and "Traceback" not in said.err
    assert main(["duty", "run", "maintenance", "-o", "json"]) == code
    assert json.loads(capsys.readouterr().out)["outcome"] == tick.outcome


def test_the_schedules_are_listed_with_their_last_outcome_and_why(node: Served, capsys: Capture) -> None:
    assert main(["schedule", "list"]) == 0
    _, morning, poll = capsys.readouterr().out.splitlines()
    assert morning.split()[:2] == ["morning", "writer"] and "fired" in morning and "caught up 90 s late" in morning
    assert poll.split()[:2] == ["poll", "far"] and "every 15m" in poll and "4 from 20" in poll
    assert main(["schedule", "list", "-o", "json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["schedules"]] == ["morning", "poll"]


def test_a_schedule_shows_each_time_at_which_it_was_due_and_how_many_went_by(node: Served, capsys: Capture) -> None:
    assert main(["schedule", "show", "morning"]) == 0
    _, fired, skipped = capsys.readouterr().out.splitlines()
    assert "fired" in fired and "n1:1" in fired
    assert "skipped_catchup: 1000 or more" in skipped and "a later one was due" in skipped
    assert main(["schedule", "show", "morning", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["fires"][0]["outcome"] == "fired"
    assert main(["schedule", "show", "evening"]) == 1
    assert "There is no schedule 'evening'; there are morning, poll." in capsys.readouterr().err


def test_what_cannot_be_run_is_refused_in_a_sentence(node: Served, capsys: Capture) -> None:
    assert main(["duty", "run", "dusting"]) == 1
    assert "There is no duty 'dusting'; the duties are maintenance." in capsys.readouterr().err
    node.node.commands.duties.problem = NotOnDuty("this node does no duties: its roles leave out 'workers'")
    assert node.post("/duties/maintenance/run", {}).status == 409
    assert main(["duty", "run", "maintenance"]) == 1
    assert "its roles leave out 'workers'" in capsys.readouterr().err
    node.node.commands.duties.problem = Unavailable("the lease store does not answer")
    assert node.ask("GET", "/query/duties").status == 503
    assert main(["duty", "list"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
