"""Pausing and resuming over HTTP and from the command line."""

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stub_node import Served

from crewlet.cli import main
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cli(api: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREWLET_URL", api.server.url)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    return api


def _pause(api: Served, handle: str = "writer") -> Any:
    return api.ask("GET", f"/query/seats/{handle}").json["seat"].get("pause")


def test_a_pause_is_shown_with_the_messages_that_it_holds_until_it_is_resumed(api: Served) -> None:
    answer = api.post("/seats/writer/pause", {"reason": "wrong customer", "by": "ada"})
    assert answer.status == 200
    assert (answer.json["handle"], answer.json["is_changed"], answer.json["messages_held"]) == ("writer", True, 3)
    shown = _pause(api)
    assert shown == answer.json["pause"]
    assert (shown["by"], shown["reason"], shown["stop_running"], shown["messages_held"]) == (
        "ada",
        "wrong customer",
        False,
        3,
    )
    assert _pause(api, "far") is None
    resumed = api.post("/seats/writer/resume", {})
    assert (resumed.status, resumed.json) == (200, {"handle": "writer", "is_changed": True, "messages_held": 3})
    assert _pause(api) is None
    again = api.post("/seats/writer/resume", {})
    assert (again.status, again.json) == (200, {"handle": "writer", "is_changed": False})


@pytest.mark.proves("HO-07")
def test_the_first_pause_stands_and_a_second_one_is_told_whose_it_is(api: Served) -> None:
    first = api.post("/seats/writer/pause", {"by": "ada", "reason": "first"}, {"Idempotency-Key": "k1"})
    again = api.post("/seats/writer/pause", {"by": "ada", "reason": "first"}, {"Idempotency-Key": "k1"})
    assert (again.status, again.json) == (200, first.json)
    other = api.post("/seats/writer/pause", {"by": "ada"}, {"Idempotency-Key": "k1"})
    assert (other.status, other.json["error"]) == (422, "id_reused")
    second = api.post("/seats/writer/pause", {"by": "bob"})
    assert (second.status, second.json["error"]) == (409, "pause_lost")
    assert "paused by ada: first" in second.json["detail"]
    changed = api.post("/seats/writer/pause", {"stop_running": True, "instead_of": first.json["pause"]["id"]})
    assert changed.status == 200 and changed.json["pause"]["stop_running"]
    assert api.post("/seats/writer/pause", {"instead_of": "k1"}).status == 409
    assert api.post("/seats/writer/resume", {"pause": "k1"}).status == 409
    assert api.post("/seats/writer/resume", {"pause": changed.json["pause"]["id"]}).json["is_changed"]
    assert api.post("/seats/writer/pause", {}).status == 200


def test_a_unit_with_the_units_inside_it_is_paused_at_once(api: Served) -> None:
    api.post("/seats/far/pause", {"by": "bob"})
    answer = api.post("/units/desk/pause", {"by": "ada"})
    assert [(seat["handle"], seat["is_changed"], seat["pause"]["by"]) for seat in answer.json["seats"]] == [
        ("writer", True, "ada"),
        ("far", False, "bob"),
    ]
    inner = api.post("/units/far%2Foff/resume", {})
    assert [(seat["handle"], seat["is_changed"]) for seat in inner.json["seats"]] == [("far", True)]
    assert _pause(api, "far") is None and _pause(api)["by"] == "ada"
    assert [seat["is_changed"] for seat in api.post("/units/desk/resume", {}).json["seats"]] == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/seats/nobody/pause", {}, 404),
        ("/seats/nobody/resume", {}, 404),
        ("/units/nowhere/pause", {}, 404),
        ("/units/nowhere/resume", {}, 404),
        ("/seats/writer/pause", {"until": "2001-01-01T00:00:00Z"}, 422),
        ("/seats/writer/pause", {"until": "2101-01-01T00:00:00"}, 422),
        ("/seats/writer/pause", {"until": "2101-01-01T00:00:00Z", "for_s": 5}, 422),
        ("/seats/writer/pause", {"for_s": 0}, 422),
        ("/seats/writer/pause", {"for_s": "5"}, 422),
        ("/seats/writer/pause", {"stop_running": "no"}, 422),
        ("/seats/writer/pause", {"for_s": 1e300}, 422),
        ("/seats/writer/pause", {"reason": "two\nlines"}, 422),
        ("/seats/writer/pause", {"reason": "x" * 201}, 422),
        ("/seats/writer/pause", {"unknown": 1}, 422),
        ("/units/desk/pause", {"instead_of": "k"}, 422),
    ],
)
def test_what_cannot_be_paused_is_refused_in_a_sentence(api: Served, path: str, body: Any, status: int) -> None:
    answer = api.post(path, body)
    assert answer.status == status and answer.json["detail"].endswith(".")
    assert _pause(api) is None


def test_an_end_can_be_an_instant_or_a_span_of_the_stores_time(api: Served) -> None:
    at = datetime.now(UTC) + timedelta(hours=5)
    api.post("/seats/writer/pause", {"until": at.isoformat()})
    assert datetime.fromisoformat(_pause(api)["until"]) == at
    api.post("/seats/far/pause", {"for_s": 3600})
    shown = _pause(api, "far")
    span = datetime.fromisoformat(shown["until"]) - datetime.fromisoformat(shown["since"])
    assert span == timedelta(hours=1)


def test_a_store_that_does_not_answer_is_a_503_and_no_word_on_who_is_paused(api: Served) -> None:
    api.node.commands.pauses.cut()
    for verb in ("pause", "resume"):
        answer = api.post(f"/seats/writer/{verb}", {})
        assert (answer.status, answer.json["error"]) == (503, "unavailable")
    fleet = api.ask("GET", "/query/fleet").json
    assert fleet["pauses_known"] is False and all("pause" not in seat for seat in fleet["seats"])


def test_a_broker_that_does_not_count_leaves_the_number_out(api: Served) -> None:
    api.node.commands.backlogs.problem = Unavailable("nobody answered")
    assert "messages_held" not in api.post("/seats/writer/pause", {}).json


def test_the_command_line_pauses_and_resumes_a_seat(cli: Served, capsys: Capture) -> None:
    assert main(["seat", "pause", "writer", "--reason", "wrong customer", "--until", "+2h"]) == 0
    header, row = capsys.readouterr().out.splitlines()[-2:]  # the node of these tests logs to the same stream
    assert header.split() == ["SEAT", "CHANGED", "MESSAGES", "PAUSED"]
    assert row.split()[:3] == ["writer", "yes", "3"]
    for words in ("since 2", "until ", "by ada", "wrong customer"):
        assert words in row
    assert main(["seat", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "3 held, since " in listed[1] and listed[2].split("no live node")[0].split()[-1] == "-"
    assert main(["status"]) == 0
    assert "paused" in capsys.readouterr().out
    assert main(["seat", "resume", "writer", "-o", "json"]) == 0
    assert json.loads("{" + capsys.readouterr().out.partition("{")[2])["is_changed"] is True
    assert _pause(cli) is None


def test_a_paused_seat_is_not_paused_again_but_its_pause_can_be_changed(cli: Served, capsys: Capture) -> None:
    assert main(["seat", "pause", "writer", "--change", "--stop-running"]) == 1
    assert capsys.readouterr().err == "crewlet: writer is not paused, so there is nothing to change.\n"
    assert main(["seat", "pause", "writer"]) == 0
    assert main(["seat", "pause", "writer", "--stop-running"]) == 1
    assert "The seat writer is paused by ada, since " in capsys.readouterr().err
    assert main(["seat", "pause", "writer", "--stop-running", "--change"]) == 0
    assert _pause(cli)["stop_running"] is True


def test_a_change_keeps_what_it_does_not_name(cli: Served) -> None:
    assert main(["seat", "pause", "writer", "--reason", "wrong customer", "--until", "2101-01-01T00:00"]) == 0
    first = _pause(cli)

    def now() -> tuple[Any, ...]:
        pause = _pause(cli)
        return pause["reason"], pause.get("until"), pause["stop_running"]

    assert main(["seat", "pause", "writer", "--change", "--stop-running"]) == 0
    assert now() == ("wrong customer", first["until"], True) and _pause(cli)["id"] != first["id"]
    assert main(["seat", "pause", "writer", "--change", "--until", "+1h"]) == 0
    assert now()[0] == "wrong customer" and now()[1] < first["until"] and now()[2]
    assert main(["seat", "pause", "writer", "--change", "--until", "never"]) == 0
    assert now() == ("wrong customer", None, True)
    assert main(["seat", "pause", "writer", "--change", "--reason", ""]) == 0
    assert now() == ("", None, True)


def test_the_command_line_pauses_a_unit_and_says_what_it_could_not_stop(cli: Served, capsys: Capture) -> None:
    assert main(["seat", "pause", "far"]) == 0
    assert main(["seat", "pause", "--unit", "desk", "--stop-running"]) == 1
    out, err = capsys.readouterr()
    assert "paused before goes on" in err and "writer" in out
    assert main(["seat", "resume", "--unit", "desk"]) == 0
    assert _pause(cli) is None and _pause(cli, "far") is None


@pytest.mark.parametrize(
    "args",
    [
        ["pause"],
        ["pause", "writer", "--unit", "desk"],
        ["pause", "--unit", "desk", "--change", "--stop-running"],
        ["pause", "writer", "--change"],
        ["pause", "writer", "--until", "tomorrow"],
        ["pause", "writer", "--until", "+5w"],
        ["pause", "writer", "--until", "+0s"],
        ["pause", "writer", "--until", "+999999d"],
        ["pause", "writer", "--reason", "two\nlines"],
        ["pause", "writer", "--reason", "\udcff"],
        ["resume"],
        ["resume", "\udcff"],
    ],
)
def test_what_makes_no_sense_on_the_command_line_is_a_usage_error(cli: Served, args: list[str]) -> None:
    assert main(["seat", *args]) == 2


def test_a_pause_whose_answer_was_lost_is_asked_for_again_and_is_one(
    cli: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(seconds: float) -> None:
        del seconds

    monkeypatch.setattr("time.sleep", at_once)
    cli.node.commands.pauses.next("create", Fault.UNANSWERED)
    assert main(["seat", "pause", "writer"]) == 0
    cli.node.commands.pauses.next("replace", Fault.UNANSWERED)
    assert main(["seat", "resume", "writer"]) == 0
    assert _pause(cli) is None


@pytest.mark.parametrize("word", ["pause", "resume"])
def test_a_node_that_says_nothing_is_asked_no_longer_than_was_told(
    cli: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr("crewlet.cli.pauses.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert main(["seat", word, "writer", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]) == 1
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert "Whether it was done is not known: `crewlet seat list` shows the pauses." in capsys.readouterr().err


def test_a_seat_or_unit_that_is_not_there_is_told_with_what_is(cli: Served, capsys: Capture) -> None:
    assert main(["seat", "pause", "writr"]) == 1
    assert "did you mean 'writer'?" in capsys.readouterr().err
    assert main(["seat", "resume", "--unit", "dsk"]) == 1
    assert "its units are: desk, far/off" in capsys.readouterr().err
