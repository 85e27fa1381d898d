"""Dead letters and inboxes over real HTTP."""

from dataclasses import replace
from typing import Any

import pytest
from stub_node import LETTER, STARTED, Served, served

from crewlet.mail.replays import ReplayUnsure
from crewlet.node.mailstatus import SeatMail
from crewlet.node.settings import ApiSettings
from crewlet.node.status import MailOutcome
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import NoMailbox


def test_letters_are_listed_in_pages(api: Served) -> None:
    api.node.commands.letters.kept = [LETTER, replace(LETTER, id="18-0a1b2c3d")]
    page = api.ask("GET", "/dlq?limit=1&seat=writer&after=3-0a1b2c3d").json
    assert [each["id"] for each in page["letters"]] == ["17-0a1b2c3d"] and page["next"] == "17-0a1b2c3d"
    assert api.node.commands.letters.asked == [("list", "writer", "3-0a1b2c3d", 1)]
    assert "next" not in api.ask("GET", "/dlq").json
    for bad in ("limit=0", "limit=201", "limit=x"):
        answer = api.ask("GET", f"/dlq?{bad}")
        assert (answer.status, answer.json["error"]) == (422, "invalid")


def test_a_letter_is_shown_and_dropped_by_its_id(api: Served) -> None:
    shown = api.ask("GET", "/dlq/17-0a1b2c3d")
    assert shown.status == 200 and shown.json["letter"]["mail"] == "order-1"
    assert [each["owner"] for each in shown.json["history"]] == ["n1:ab", "n2:cd"]
    dropped = api.ask("DELETE", "/dlq/17-0a1b2c3d")
    assert (dropped.status, dropped.json) == (200, {"id": "17-0a1b2c3d", "seat": "writer", "mail": "order-1"})
    for method in ("GET", "DELETE"):
        answer = api.ask(method, "/dlq/17-0a1b2c3d")
        assert (answer.status, answer.json["error"]) == (404, "unknown_letter")


def test_a_replay_is_asked_for_in_json(api: Served) -> None:
    answer = api.post("/dlq/17-0a1b2c3d/replay", {})
    assert answer.status == 202
    assert answer.json == {
        "id": "17-0a1b2c3d",
        "seat": "writer",
        "mail": "order-1",
        "replayed_at": "2026-01-02T03:04:05Z",
        "is_repeat": False,
        "state": "open",
    }
    api.post("/dlq/17-0a1b2c3d/replay", {"again": True})
    assert api.node.commands.letters.asked == [("replay", "17-0a1b2c3d", False), ("replay", "17-0a1b2c3d", True)]
    assert api.post("/dlq/17-0a1b2c3d/replay", {"agian": True}).status == 422
    assert api.post("/dlq/17-0a1b2c3d/replay", {"again": "yes"}).status == 422
    assert api.ask("POST", "/dlq/17-0a1b2c3d/replay", "{}").status == 415


@pytest.mark.parametrize(
    ("problem", "status", "word"),
    [
        (Misuse("'x' is not the id of a dead letter"), 422, "invalid"),
        (ReplayUnsure("not confirmed"), 409, "replay_unsure"),
        (NoMailbox("no subscription"), 503, "no_mailbox"),
        (Unavailable("nobody answered"), 503, "unavailable"),
    ],
)
def test_a_replay_says_why_not(api: Served, problem: Exception, status: int, word: str) -> None:
    api.node.commands.letters.problem = problem
    answer = api.post("/dlq/17-0a1b2c3d/replay", {})
    assert (answer.status, answer.json["error"]) == (status, word)


def test_a_draining_node_replays_nothing(api: Served) -> None:
    api.node.change(status="shutting_down", shutting_down=True)
    assert api.post("/dlq/17-0a1b2c3d/replay", {}).json["error"] == "draining"
    assert api.node.commands.letters.asked == []
    assert api.ask("GET", "/dlq").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/dlq"), ("GET", "/dlq/1-0a1b2c3d"), ("DELETE", "/dlq/17-0a1b2c3d"), ("GET", "/seats/writer/mail")],
)
def test_dead_letters_and_inboxes_need_the_token(method: str, path: str) -> None:
    with served(api=ApiSettings("127.0.0.1", "auto", "t0ken")) as locked:
        assert locked.ask(method, path).status == 401
        assert locked.node.commands.letters.asked == []


def test_an_inbox_is_shown(api: Served) -> None:
    api.node.commands.inboxes["writer"] = SeatMail("writer", 3, 1, STARTED, 61.4, "n1", "seat_paused")
    expected: dict[str, Any] = {
        "seat": "writer",
        "waiting": 3,
        "in_hand": 1,
        "oldest_at": "2026-01-02T03:04:05Z",
        "oldest_age_s": 61.4,
        "node": "n1",
        "held": "seat_paused",
        "last_error": "",
        "is_held_known": True,
        "why": "",
    }
    assert api.ask("GET", "/seats/writer/mail").json == expected
    assert api.ask("GET", "/seats/nobody/mail").status == 404


def test_a_mails_state_is_told(api: Served) -> None:
    outcomes = api.node.commands.outcomes
    outcomes["d"] = MailOutcome("d", "writer", "dead_lettered", detail="it broke", dead_letter="17-0a1b2c3d")
    outcomes["u"] = MailOutcome("u", "writer", "unknown")
    assert api.ask("GET", "/seats/writer/mail/d").json["dead_letter"] == "17-0a1b2c3d"
    assert api.ask("GET", "/seats/writer/mail/u").json["state"] == "unknown"


def test_metrics_count_dead_letters(api: Served) -> None:
    assert b"crewlet_dead_letters_total 0.0" in api.ask("GET", "/metrics").body
    api.node.change(dead_letters=2, failed_burials=1)
    lines = api.ask("GET", "/metrics").body.decode().splitlines()
    assert "crewlet_dead_letters_total 2.0" in lines and "crewlet_failed_burials_total 1.0" in lines


def test_an_idempotency_key_that_has_a_dead_letter_sends_nothing_and_names_the_letter(api: Served) -> None:
    answer = api.post("/seats/writer/mail", {"body": "x"}, {"Idempotency-Key": "order-1"})
    expected = {"id": "order-1", "is_duplicate": True, "dead_letter": "17-0a1b2c3d"}
    assert (answer.status, answer.json) == (202, expected)
    answer = api.post("/seats/writer/mail", {"body": "x"}, {"Idempotency-Key": "order-2"})
    assert (answer.status, answer.json) == (202, {"id": "order-2", "is_duplicate": False})
