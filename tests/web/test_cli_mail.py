"""Dead letters, inboxes and what becomes of a sent mail, from the command line against a node over real HTTP."""

import http.server
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stub_node import LETTER, STARTED, Served

from crewlet.cli import main, sending
from crewlet.mail.replays import ReplayUnsure
from crewlet.node.mailstatus import SeatMail
from crewlet.node.status import MailOutcome
from crewlet.ports.errors import Unavailable

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def node(one_server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A node as new, found through the environment."""
    one_server.node.reset()
    monkeypatch.delenv("CREWLET_API_TOKEN", raising=False)
    monkeypatch.setenv("CREWLET_URL", one_server.server.url)
    return one_server


def shown(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


def test_dead_letters_are_listed_and_steer_no_terminal(node: Served, capsys: Capture) -> None:
    assert main(["dlq", "list"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["LETTER", "SEAT", "MAIL", "DELIVERIES", "BURIED", "REPLAY", "REASON"]
    assert line.split()[:6] == ["17-0a1b2c3d", "writer", "order-1", "25", "2026-01-02T03:04:05Z", "-"]
    assert line.endswith("the model?[2J refused")


def test_a_page_of_dead_letters_says_how_to_go_on(node: Served, capsys: Capture) -> None:
    node.node.commands.letters.kept = [LETTER, replace(LETTER, id="18-0a1b2c3d")]
    assert main(["dlq", "list", "--seat", "writer", "--limit", "1", "--after", "3-0a1b2c3d"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and err.endswith("go on with --after 17-0a1b2c3d\n")
    assert node.node.commands.letters.asked == [("list", "writer", "3-0a1b2c3d", 1)]
    assert main(["dlq", "list", "-o", "json"]) == 0
    assert [each["id"] for each in shown(capsys)["letters"]] == ["17-0a1b2c3d", "18-0a1b2c3d"]


def test_no_dead_letters_is_said_on_standard_error(node: Served, capsys: Capture) -> None:
    node.node.commands.letters.kept = []
    assert main(["dlq", "list"]) == 0
    assert capsys.readouterr() == ("", "There are no dead letters.\n")


def test_a_dead_letter_is_shown_with_its_history_and_text(node: Served, capsys: Capture) -> None:
    assert main(["dlq", "show", "17-0a1b2c3d"]) == 0
    out = capsys.readouterr().out
    for words in ("order-1", "An order", "n1:ab", "it never said", "the model refused", "Please.?\nNow."):
        assert words in out
    assert "\x1b" not in out and "\x07" not in out
    assert main(["dlq", "show", "17-0a1b2c3d", "-o", "json"]) == 0
    assert [row["number"] for row in shown(capsys)["history"]] == [2, 25]


def test_a_replay_says_whether_it_sent_anything(node: Served, capsys: Capture) -> None:
    assert main(["dlq", "replay", "17-0a1b2c3d"]) == 0
    assert capsys.readouterr().out == "order-1 replayed to writer\n"
    node.node.commands.letters.kept = [replace(LETTER, replay="done", replayed_at=STARTED)]
    assert main(["dlq", "replay", "17-0a1b2c3d", "--again"]) == 0
    assert "had been replayed to writer already, at 2026-01-02" in capsys.readouterr().out
    assert node.node.commands.letters.asked == [("replay", "17-0a1b2c3d", False), ("replay", "17-0a1b2c3d", True)]


def test_a_replay_that_cannot_be_judged_is_a_failure_with_its_reason(node: Served, capsys: Capture) -> None:
    node.node.commands.letters.problem = ReplayUnsure("a replay of it was begun and never confirmed")
    assert main(["dlq", "replay", "17-0a1b2c3d", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "replay_unsure", "detail": "A replay of it was begun and never confirmed."}
    assert err == "crewlet: A replay of it was begun and never confirmed.\n"


def test_a_drop_is_named_and_a_second_one_finds_nothing(node: Served, capsys: Capture) -> None:
    assert main(["dlq", "drop", "17-0a1b2c3d"]) == 0
    assert capsys.readouterr().out == "17-0a1b2c3d dropped: mail order-1 of writer\n"
    assert main(["dlq", "drop", "17-0a1b2c3d"]) == 1
    assert "no dead letter '17-0a1b2c3d'" in capsys.readouterr().err


def test_a_letter_id_cannot_reach_another_route(node: Served, capsys: Capture) -> None:
    assert main(["dlq", "show", "../query/fleet"]) == 2
    assert main(["dlq", "show", ""]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_inbox_is_shown_with_what_holds_it(node: Served, capsys: Capture) -> None:
    node.node.commands.inboxes = {
        "writer": SeatMail("writer", 3, 1, STARTED, 61.4, "n1", "seat_paused"),
        "far": SeatMail("far", 2, 0, STARTED, 5.0, "n2", is_held_known=False),
    }
    assert main(["seat", "mail", "writer"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["waiting", "3"] in lines and ["oldest", "61s, since 2026-01-02T03:04:05Z"] in lines
    assert ["held", "back  seat_paused"] in lines
    assert main(["seat", "mail", "far"]) == 0
    assert "n2 did not say" in capsys.readouterr().out
    assert main(["seat", "mail", "writer", "-o", "json"]) == 0
    assert shown(capsys)["in_hand"] == 1
    assert main(["seat", "mail", "nobody", "-o", "json"]) == 1
    assert shown(capsys)["error"] == "unknown_seat"


def test_waiting_ends_at_a_dead_letter_and_fails(node: Served, capsys: Capture) -> None:
    node.node.commands.outcomes["k"] = MailOutcome(
        "k", "writer", "dead_lettered", detail="it broke", deliveries=25, dead_letter="17-0a1b2c3d"
    )
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait"]) == 1
    assert capsys.readouterr().out == "k\ndead_lettered: it broke\n"
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait", "-o", "json"]) == 1
    answer = shown(capsys)
    assert (answer["id"], answer["state"], answer["dead_letter"]) == ("k", "dead_lettered", "17-0a1b2c3d")


def test_waiting_tells_that_the_turn_keeps_breaking(
    node: Served, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    outcomes = node.node.commands.outcomes
    outcomes["k"] = MailOutcome("k", "writer", "open")
    steps: list[MailOutcome] = [
        MailOutcome("k", "writer", "open", deliveries=1),
        MailOutcome("k", "writer", "open", deliveries=2, detail="no\x1bmodel"),
        MailOutcome("k", "writer", "open", deliveries=2, detail="no\x1bmodel"),
        MailOutcome("k", "writer", "open", deliveries=3, detail="no model"),
        MailOutcome("k", "writer", "finished", "delivered", "", "t1", datetime(2026, 1, 1, tzinfo=UTC)),
    ]

    def step(_: float) -> None:
        outcomes["k"] = steps.pop(0)

    monkeypatch.setattr("crewlet.cli.sending.time.sleep", step)
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait"]) == 0
    out, err = capsys.readouterr()
    assert out == "k\ndelivered\n"
    told = [line.partition(" It was handed over ")[2] for line in err.splitlines()]
    assert told == ["once.", "2 times. A turn broke: no?model.", "3 times. A turn broke: no model."]


def test_waiting_says_once_what_keeps_the_mail_from_being_read(
    node: Served, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    outcomes, inboxes = node.node.commands.outcomes, node.node.commands.inboxes
    outcomes["k"] = MailOutcome("k", "writer", "open")
    paused = SeatMail("writer", 1, 0, node="n1", held="seat_paused", why="writer was paused by ada (x\x1by)")
    spent = SeatMail("writer", 1, 0, node="n1", held="budget_window", why="writer has spent 5 of 5 tokens this day")
    steps = [paused, paused, paused, spent, SeatMail("writer", 1, 0, node="n1"), paused]
    monkeypatch.setattr(sending, "WHY_AFTER_S", 0.0)
    monkeypatch.setattr(sending, "WHY_EVERY_S", 0.0)
    inboxes["writer"] = SeatMail("writer", 1, 0, node="n1")

    def step(_: float) -> None:
        if steps:
            inboxes["writer"] = steps.pop(0)
        else:
            outcomes["k"] = MailOutcome("k", "writer", "finished", "delivered")

    monkeypatch.setattr("crewlet.cli.sending.time.sleep", step)
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["outcome"] == "delivered"
    one = "crewlet: Still waiting: writer was paused by ada (x?y)."
    assert err.splitlines() == [one, "crewlet: Still waiting: writer has spent 5 of 5 tokens this day.", one]


def test_waiting_is_never_silent_for_ever(node: Served, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sending, "STILL_WAITING_S", 0.2)
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait", "--timeout", "4", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["error"], answer["id"], answer["state"]) == ("failed", "k", "open")
    assert err.count("Still waiting after") >= 2
    assert err.splitlines()[-1] == "crewlet: No turn has finished the mail k yet."


def test_a_mail_without_a_trace_is_said_while_waiting(node: Served, capsys: Capture) -> None:
    node.node.commands.outcomes["k"] = MailOutcome("k", "writer", "unknown")
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait", "--timeout", "2"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("yet. The node finds no trace of the mail.")


def test_the_timeout_bounds_the_sending_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    class Silent(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            release.wait(600)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setattr(sending, "TIMEOUT_S", 600.0)  # longer than a test may take
    release = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        assert main(["seat", "send", "writer", "a", "--id", "k", "--timeout", "0.5", "-o", "json", "--url", url]) == 1
    finally:
        release.set()
        server.shutdown()
        thread.join()
        server.server_close()
    answer = shown(capsys)
    assert (answer["error"], answer["id"]) == ("failed", "k") and "repeat it with --id k" in answer["detail"]


def test_failures_are_json_where_json_was_asked_for(
    node: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert main(["seat", "send", "nobody", "a", "-o", "json"]) == 1
    answer = shown(capsys)
    assert answer["error"] == "unknown_seat" and "no seat 'nobody'" in answer["detail"]
    assert main(["seat", "send", "nobody", "a"]) == 1
    assert capsys.readouterr().out == ""
    node.node.fleet_problem = Unavailable("the lease store does not answer")
    assert main(["seat", "list", "-o", "json"]) == 1
    assert shown(capsys)["error"] == "fleet_unavailable"
    monkeypatch.delenv("CREWLET_URL")
    assert main(["seat", "list", "-o", "json", "--config", str(tmp_path / "none.yaml")]) == 78
    assert shown(capsys)["error"] == "config_refused"


def test_sending_under_the_id_of_a_dead_letter_fails_and_says_how_to_replay_it(node: Served, capsys: Capture) -> None:
    assert main(["seat", "send", "writer", "hi", "--id", "order-1"]) == 1
    sentence = "crewlet: The mail of this id was dead-lettered; `crewlet dlq replay 17-0a1b2c3d` puts it back.\n"
    assert capsys.readouterr() == ("order-1\n", sentence)
    assert main(["seat", "send", "writer", "hi", "--id", "order-1", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"id": "order-1", "is_duplicate": True, "dead_letter": "17-0a1b2c3d"}
    assert err == sentence and node.node.commands.sent == []
    assert main(["seat", "send", "writer", "hi", "--id", "order-2"]) == 0
    assert capsys.readouterr() == ("order-2\n", "")


@pytest.mark.parametrize("option", ["--subject", "--conversation"])
@pytest.mark.parametrize("text", ["two\nlines", "bell\x07", 201 * "x"])
def test_a_line_that_is_none_is_refused_with_the_option_and_the_rule(
    node: Served, capsys: Capture, option: str, text: str
) -> None:
    assert main(["seat", "send", "writer", "hi", option, text]) == 2
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"crewlet: {option}: write one line of at most 200 characters" in err
    assert node.node.commands.sent == []


def test_one_mail_is_shown_with_what_became_of_it_and_why_it_waits(node: Served, capsys: Capture) -> None:
    commands = node.node.commands
    commands.inboxes["writer"] = SeatMail("writer", 1, 0, node="n1", why="writer is not ready: it was not found")
    assert main(["seat", "mail", "writer", "m1"]) == 0
    words = capsys.readouterr().out.split()
    assert words[:6] == ["mail", "m1", "seat", "writer", "state", "open"]
    assert " ".join(words[6:]) == "why writer is not ready: it was not found"
    commands.outcomes["m2"] = MailOutcome("m2", "writer", "finished", outcome="delivered", turn_id="t7")
    assert main(["seat", "mail", "writer", "m2", "-o", "json"]) == 0
    told = shown(capsys)
    assert (told["state"], told["outcome"], told["turn_id"], told.get("why")) == ("finished", "delivered", "t7", None)
    assert main(["seat", "mail", "writer", "a/b"]) == 2
