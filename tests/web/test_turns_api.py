"""Turns and budgets over HTTP and from the command line."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from stub_node import STARTED, TURN, Served

from crewlet.cli import main
from crewlet.node.turnstatus import SeatTail
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import DispatchLine

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cli(api: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREWLET_URL", api.server.url)
    return api


def test_a_running_turn_shows_its_round_its_tool_and_how_long_it_has_been_quiet(api: Served) -> None:
    tail = api.ask("GET", "/seats/writer/turns?after=2&limit=5").json
    assert api.node.commands.history.asked == [("writer", 2, 5)]
    (turn,) = tail["turns"]
    assert (turn["state"], turn["round"], turn["tool"], turn["quiet_s"]) == ("running", 2, "files_write", 41.5)
    assert (tail["node"], tail["is_here"]) == ("n1", True)
    assert tail["dispatches"][0]["reason"] == 'seat "writer" is not owned here'


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/seats/nobody/turns", 404, "unknown_seat"),
        ("/seats/writer/turns?limit=0", 422, "invalid"),
        ("/seats/writer/turns?after=-1", 422, "invalid"),
        ("/turns/0a1", 422, "invalid"),
        ("/turns/ffff", 404, "unknown_turn"),
        ("/seats/nobody/budget", 404, "unknown_seat"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_word(api: Served, path: str, status: int, word: str) -> None:
    answer = api.ask("GET", path)
    assert (answer.status, answer.json["error"]) == (status, word)


def test_a_history_that_cannot_be_read_is_unavailable(api: Served) -> None:
    api.node.commands.history.problem = Unavailable("the disk is gone")
    assert api.ask("GET", "/seats/writer/turns").status == 503


def test_a_turn_is_shown_with_its_rounds_and_calls_by_the_beginning_of_its_id(api: Served) -> None:
    page = api.ask("GET", "/turns/0a1b").json
    assert [row["number"] for row in page["rounds"]] == [1, 2]
    assert page["calls"][0]["tool"] == "files_write" and "ended_at" not in page["calls"][0]


@pytest.mark.parametrize(
    "wish", [{}, {"day": -1}, {"day": 1, "unlimited": True}, {"year": 1}, {"unlimited": True, "as_documented": True}]
)
def test_what_is_no_budget_is_refused(api: Served, wish: object) -> None:
    assert api.post("/seats/writer/budget", wish).status == 422


def test_caps_are_set_shown_and_given_up_again(api: Served) -> None:
    assert api.ask("GET", "/seats/writer/budget").json["windows"]["day"]["cap"] == 100
    answer = api.post("/seats/writer/budget", {"week": 5})
    assert answer.status == 200 and answer.json["is_set"]
    assert "cap" not in answer.json["windows"]["day"] and answer.json["windows"]["week"]["cap"] == 5
    assert api.post("/seats/writer/budget", {"unlimited": True}).json["windows"]["week"].get("cap") is None
    assert api.post("/seats/writer/budget", {"as_documented": True}).json["windows"]["day"]["cap"] == 100
    assert api.post("/budget", {"month": 7}).json["windows"]["month"]["cap"] == 7
    listed = api.ask("GET", "/budgets").json["budgets"]
    assert [each.get("seat") for each in listed] == [None, "writer"]
    assert api.post("/budget/reset", {}).status == 200


def test_the_tail_of_a_seat_is_lines_for_people(cli: Served, capsys: Capture) -> None:
    assert main(["seat", "tail", "writer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'mail      handed back: seat "writer" is not owned here (order-0)' in lines[1]
    assert "0a1b2c3d  running, round 2, files_write, last sign 42s ago: half?[2J way" in lines[0]


def test_a_tail_has_no_more_lines_than_were_asked_for_and_the_running_turn_first(cli: Served, capsys: Capture) -> None:
    ended = replace(TURN, state="ended", turn_id="1b2c", sequence=2, ended_at=STARTED, outcome="delivered")
    lost = [DispatchLine("writer", ("order-0",), "defer", why, STARTED + timedelta(9)) for why in ("first", "second")]
    cli.node.commands.history.tails = [SeatTail("writer", "n1", "n1", True, (ended, TURN), tuple(lost))]
    lines = list[str]()
    for limit in range(1, 5):
        assert main(["seat", "tail", "writer", "--limit", str(limit)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == limit and sum("running" in line for line in lines) == 1
        assert main(["seat", "tail", "writer", "-n", str(limit), "-o", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert len(shown["turns"]) + len(shown["dispatches"]) == limit
    assert "second" in lines[-1] and "delivered" in lines[0]


def test_following_from_the_newest_line_tells_none_that_is_older(cli: Served, capsys: Capture) -> None:
    cut_off = replace(TURN, state="cut_off", turn_id="1b2c", sequence=1, quiet_s=None)
    history = cli.node.commands.history
    history.tails = [SeatTail("writer", "n1", "n1", True, (cut_off, TURN), ())] * 3

    def stop(seconds: float) -> None:
        if len(history.tails) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("crewlet.cli.tail.time.sleep", stop)
        assert main(["seat", "tail", "writer", "-f", "-n", "1"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert all(limit == 200 for _, _, limit in history.asked), "what ends between two looks is not passed over"


def test_a_seat_that_runs_elsewhere_is_told_with_where_to_ask(cli: Served, capsys: Capture) -> None:
    cli.node.commands.history.tails = [SeatTail("writer", "n1", "n2", False, (), ())]
    assert main(["seat", "tail", "writer"]) == 0
    assert "n2 runs the seat now" in capsys.readouterr().err


def test_following_tells_what_changes_and_a_quiet_turn_again_and_again(cli: Served, capsys: Capture) -> None:
    quiet = replace(TURN, quiet_s=55.0)
    ended = replace(TURN, state="ended", quiet_s=None, ended_at=STARTED + timedelta(60), outcome="delivered")
    history = cli.node.commands.history
    history.tails = [SeatTail("writer", "n1", "n1", True, (turn,), ()) for turn in (TURN, TURN, quiet, ended)]

    def stop(seconds: float) -> None:
        if len(history.tails) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("crewlet.cli.tail.time.sleep", stop)
        assert main(["seat", "tail", "writer", "--follow", "-o", "json"]) == 130
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["state"], each.get("quiet_s")) for each in told] == [
        ("running", 41.5),
        ("running", 55.0),
    ]


def test_a_turn_is_shown_for_people(cli: Served, capsys: Capture) -> None:
    assert main(["turn", "show", "0a1b2c3d"]) == 0
    out = capsys.readouterr().out
    assert "running, round 2, files_write" in out and "(no end)" in out and "yes" in out
    assert main(["turn", "show", "ffff"]) == 1
    assert "remembers no turn" in capsys.readouterr().err
    assert main(["turn", "show", "x"]) == 2


def test_budgets_from_the_command_line(cli: Served, capsys: Capture) -> None:
    assert main(["budget", "set", "writer", "--day", "5"]) == 0
    assert "a person" in capsys.readouterr().out
    assert main(["budget", "show", "-o", "json"]) == 0
    assert [each.get("seat") for each in json.loads(capsys.readouterr().out)["budgets"]] == [None, "writer"]
    assert main(["budget", "reset", "writer"]) == 0
    assert main(["budget", "set", "--unlimited"]) == 0
    capsys.readouterr()
    assert main(["budget", "set", "writer"]) == 2
    assert main(["budget", "set", "writer", "--day", "1", "--unlimited"]) == 2
    assert main(["budget", "show", "nobody"]) == 1
    assert "no seat 'nobody'" in capsys.readouterr().err
