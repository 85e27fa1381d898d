"""The API of one node, over real HTTP."""

from datetime import UTC, datetime
from typing import Any

import pytest
from stub_node import FLEET, Served

from crewlet.mail.reuse import IdReused
from crewlet.node.limits import LINE_RULE, MESSAGE_ID_RULE
from crewlet.node.status import MailOutcome
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import MailRefused, MessageTooLarge, NoMailbox


def test_health_gives_the_facts_and_leaves_out_what_does_not_apply(api: Served) -> None:
    answer = api.ask("GET", "/health")
    assert answer.status == 200
    assert answer.json == {
        "status": "ok",
        "node": "n1",
        "owner": "n1:ab",
        "version": "0.1.0",
        "started_at": "2026-01-02T03:04:05Z",
        "queue": "connected",
        "in_flight": 1,
        "shutting_down": False,
        "seats": ["writer"],
        "lease_ttl_s": 45.0,
        "has_presence": True,
    }


@pytest.mark.proves("TB-07")
def test_an_unproven_seat_is_told_apart_from_the_held_ones(api: Served) -> None:
    assert "unproven_seconds" not in api.ask("GET", "/health").json
    api.node.change(seats=(), unproven_seconds={"writer": 12.5}, nodes=3)
    health = api.ask("GET", "/health").json
    assert (health["seats"], health["unproven_seconds"], health["nodes"]) == ([], {"writer": 12.5}, 3)


def test_health_is_200_while_draining_and_readiness_is_not(api: Served) -> None:
    api.node.change(status="shutting_down", shutting_down=True)
    assert api.ask("GET", "/health").status == api.ask("GET", "/livez").status == 200
    ready = api.ask("GET", "/readyz")
    assert (ready.status, ready.json) == (503, {"ready": False, "node": "n1", "draining": True, "reason": "draining"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "starting"}, "starting"),
        ({"queue": "disconnected"}, "broker_unlinked"),
        ({"has_presence": False}, "no_presence"),
    ],
)
def test_readiness_says_why_not(api: Served, change: dict[str, Any], reason: str) -> None:
    assert api.ask("GET", "/readyz").json == {"ready": True, "node": "n1", "draining": False}
    api.node.change(**change)
    ready = api.ask("GET", "/readyz")
    assert (ready.status, ready.json["reason"]) == (503, reason)


def test_the_fleet_is_told_as_the_leases_tell_it(api: Served) -> None:
    fleet = api.ask("GET", "/query/fleet").json
    assert fleet["nodes"] == [
        {
            "id": "n1",
            "roles": ["ingress", "seats"],
            "labels": {"zone": "eu"},
            "owner": "n1:ab",
            "protocol": 4,
            "seats": 1,
            "expires_in": 41.5,
            "draining": False,
            "seats_withdrawn": False,
        }
    ]
    assert fleet["seats"][0]["acquired_at"] == "2026-01-02T03:04:05Z"
    assert fleet["seats"][1] == {"handle": "far", "title": "", "runner": "script", "placement": "zone=us"}
    assert (fleet["unplaceable"], fleet["this_node"]) == ([{"handle": "far", "placement": "zone=us"}], "n1")
    assert set(FLEET.unmanned_roles) == set(fleet["unmanned_roles"])


def test_leases_that_cannot_be_read_are_not_an_empty_fleet(api: Served) -> None:
    api.node.fleet_problem = Unavailable("the lease store does not answer")
    answer = api.ask("GET", "/query/fleet")
    assert answer.status == 503 and "retry-after" in answer.headers
    assert answer.json == {"error": "fleet_unavailable", "detail": "The lease store does not answer."}


def test_one_seat_can_be_asked_for(api: Served) -> None:
    assert api.ask("GET", "/query/seats/writer").json["seat"]["node"] == "n1"
    assert api.ask("GET", "/query/seats/far").json["is_placeable"] is False
    missing = api.ask("GET", "/query/seats/nobody")
    assert (missing.status, missing.json["error"]) == (404, "unknown_seat")


def test_mail_is_put_into_the_inbox_under_the_key_of_its_sender(api: Served) -> None:
    mail = {"body": "hello", "subject": "Greeting", "conversation": "c1", "chat_message": "slack:C1:1.0"}
    first = api.post("/seats/writer/mail", mail, {"Idempotency-Key": "k-1"})
    assert (first.status, first.json) == (202, {"id": "k-1", "is_duplicate": False})
    assert first.headers["location"] == "/seats/writer/mail/k-1"
    assert api.post("/seats/writer/mail", mail, {"Idempotency-Key": "k-1"}).json["is_duplicate"] is True
    assert api.node.commands.sent[0] == {"handle": "writer", "id": "k-1", **mail}


def test_mail_without_a_key_gets_an_id(api: Served) -> None:
    assert api.post("/seats/writer/mail", {"body": "hello"}).json == {"id": "made-here", "is_duplicate": False}


def test_the_outcome_of_a_mail_can_be_followed(api: Served) -> None:
    assert api.ask("GET", "/seats/writer/mail/k").json["state"] == "open"
    recorded = datetime(2026, 1, 1, tzinfo=UTC)
    api.node.commands.outcomes["k"] = MailOutcome("k", "writer", "finished", "delivered", "done", "t1", recorded)
    assert api.ask("GET", "/seats/writer/mail/k").json == {
        "id": "k",
        "seat": "writer",
        "state": "finished",
        "outcome": "delivered",
        "detail": "done",
        "turn_id": "t1",
        "recorded_at": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("problem", "status", "error", "detail"),
    [
        (NoMailbox("no mailbox yet"), 503, "no_mailbox", "No mailbox yet."),
        (MessageTooLarge("over 1 MiB"), 413, "too_large", "Over 1 MiB."),
        (MailRefused("it cannot be kept"), 422, "refused", "It cannot be kept."),
        (Unavailable("nobody answered"), 503, "unavailable", "Nobody answered."),
        (Misuse("an id has characters"), 422, "invalid", "An id has characters."),
        (IdReused("it was sent before"), 422, "id_reused", "It was sent before."),
    ],
)
def test_a_refusal_of_the_node_keeps_its_meaning(
    api: Served, problem: Exception, status: int, error: str, detail: str
) -> None:
    api.node.commands.problem = problem
    answer = api.post("/seats/writer/mail", {"body": "x"})
    assert (answer.status, answer.json) == (status, {"error": error, "detail": detail})


def test_mail_to_an_unknown_seat_is_refused_with_the_nearest_one(api: Served) -> None:
    answer = api.post("/seats/writr/mail", {"body": "x"})
    assert answer.status == 404
    assert answer.json == {
        "error": "unknown_seat",
        "detail": "The company has no seat 'writr'; did you mean 'writer'?",
    }


def test_a_draining_node_takes_no_mail(api: Served) -> None:
    api.node.change(status="shutting_down", shutting_down=True)
    answer = api.post("/seats/writer/mail", {"body": "x"})
    assert (answer.status, answer.json["error"]) == (503, "draining") and "retry-after" in answer.headers
    assert not api.node.commands.sent


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("{", "The body is not valid JSON."),
        (b'{"body": "\xff"}', "The body is not UTF-8 text."),
        ('{"body": ' + 100_000 * "[", "The body is nested too deeply."),
        ("[]", "body: it has to be a JSON object."),
        ("{}", "body: it is missing."),
        ('{"body": ""}', "body: it is empty."),
        ('{"body": "x", "bdy": "y"}', "bdy: there is no such field."),
        ('{"body": "x", "' + 500 * "y" + '": "y"}', 80 * "y" + ": there is no such field."),
        ('{"body": 3}', "body: it has to be text."),
        ('{"body": "\\ud800"}', "body: it has to be text that UTF-8 can hold."),
        ('{"body": "x", "subject": "two\\nlines"}', f"subject: {LINE_RULE}."),
        ('{"body": "x", "conversation": "a\\u0085b"}', f"conversation: {LINE_RULE}."),
        ('{"body": "x", "chat_message": "a\\u2028b"}', f"chat_message: {LINE_RULE}."),
        ('{"body": "x", "subject": "' + 201 * "x" + '"}', "subject: it has at most 200 characters."),
    ],
)
def test_a_body_that_cannot_be_used_is_told_by_its_field(api: Served, body: str | bytes, detail: str) -> None:
    answer = api.ask("POST", "/seats/writer/mail", body, {"Content-Type": "application/json"})
    assert (answer.status, answer.json["error"]) == (422, "invalid")
    assert answer.json["detail"] == detail
    assert not api.node.commands.sent


@pytest.mark.parametrize("key", ["", "a b", "-a", "a" * 201, "a/b"])
def test_a_key_that_cannot_be_an_id_is_refused(api: Served, key: str) -> None:
    answer = api.post("/seats/writer/mail", {"body": "x"}, {"Idempotency-Key": key})
    assert (answer.status, answer.json["detail"]) == (422, f"Idempotency-Key: {MESSAGE_ID_RULE}.")


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/seats/writer/pause", {"for_s": 0}, "for_s: it has to be more than 0.0."),
        ("/seats/writer/pause", {"for_s": "soon"}, "for_s: it has to be a number."),
        ("/seats/writer/pause", {"until": "soon"}, "until: write an instant with its zone, such as"),
        ("/seats/writer/pause", {"until": "2030-01-31T18:00:00"}, "until: write an instant with its zone, such as"),
        ("/seats/writer/pause", {"for_s": 1, "until": "2030-01-31T18:00:00Z"}, "body: give until or for_s, not both."),
        ("/seats/writer/pause", {"reason": "a\nb"}, f"reason: {LINE_RULE}."),
        ("/dlq/17-0a1b2c3d/replay", {"again": "perhaps"}, "again: it has to be true or false."),
        (f"/seats/{64 * 'x'}/mail", {"body": "x"}, "handle: it has at most 63 characters."),
    ],
)
def test_every_field_is_refused_with_its_name_and_its_rule(
    api: Served, path: str, body: dict[str, Any], detail: str
) -> None:
    answer = api.post(path, body)
    assert (answer.status, answer.json["error"]) == (422, "invalid")
    assert answer.json["detail"].startswith(detail)


def test_what_is_not_there_is_told_in_the_same_shape(api: Served) -> None:
    assert api.ask("GET", "/nope").json == {
        "error": "not_found",
        "detail": "There is nothing at this path; `GET /openapi.json` says what there is.",
    }
    wrong = api.ask("DELETE", "/health")
    assert (wrong.status, wrong.json["error"]) == (405, "method_not_allowed")


def test_a_defect_is_told_without_its_insides_and_the_server_goes_on(api: Served) -> None:
    api.node.commands.problem = RuntimeError("secret inside")
    answer = api.post("/seats/writer/mail", {"body": "x"})
    assert (answer.status, answer.json["error"]) == (500, "internal") and b"secret" not in answer.body
    assert api.ask("GET", "/livez").json == {"alive": True}


def test_metrics_say_what_the_health_says(api: Served) -> None:
    api.node.change(unproven_seconds={"writer": 3.0}, nodes=2, other_documents=("n2",))
    answer = api.ask("GET", "/metrics")
    lines = answer.body.decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        "crewlet_seats_held 1.0",
        "crewlet_turns_in_flight 1.0",
        "crewlet_broker_connected 1.0",
        "crewlet_live_nodes 2.0",
        "crewlet_other_documents 1.0",
        'crewlet_unproven_seconds{seat="writer"} 3.0',
        'crewlet_build_info{node="n1",version="0.1.0"} 1.0',
    ):
        assert line in lines


def test_the_description_names_every_route_and_its_refusals(api: Served) -> None:
    paths = api.ask("GET", "/openapi.json").json["paths"]
    assert set(paths) == {
        "/health",
        "/livez",
        "/readyz",
        "/metrics",
        "/query/fleet",
        "/query/duties",
        "/query/schedules",
        "/query/schedules/{name}",
        "/duties/{name}/run",
        "/dlq",
        "/dlq/{letter_id}",
        "/dlq/{letter_id}/replay",
        "/query/seats/{handle}",
        "/seats/{handle}/mail",
        "/seats/{handle}/mail/{message_id}",
        "/seats/{handle}/pause",
        "/seats/{handle}/resume",
        "/seats/{handle}/turns",
        "/turns/{turn_id}",
        "/budgets",
        "/query/troubles",
        "/budget",
        "/budget/reset",
        "/seats/{handle}/budget",
        "/seats/{handle}/budget/reset",
        "/units/{unit}/pause",
        "/units/{unit}/resume",
    }
    assert set(paths["/seats/{handle}/mail"]["post"]["responses"]) == {"202", "400", "404", "413", "415", "422", "503"}


def test_no_answer_invites_pages_of_other_origins(api: Served) -> None:
    answer = api.ask("GET", "/health", headers={"Origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/seats/writer/mail/"),
        ("GET", "/seats/writer/mail/%2f"),
        ("GET", "/seats/%2f/mail"),
        ("GET", "/seats//mail"),
        ("GET", "/dlq/"),
        ("GET", "/dlq/%2F"),
        ("GET", "/health/"),
        ("GET", "/query/schedules/%2f"),
        ("POST", "/seats/writer/mail/"),
        ("POST", "/seats/writer/pause/"),
        ("POST", "/duties/%2f/run"),
        ("DELETE", "/dlq/"),
    ],
)
def test_a_path_with_a_slash_too_many_is_told_as_nothing_there(api: Served, method: str, path: str) -> None:
    answer = api.ask(method, path, "{}" if method == "POST" else None, {"Content-Type": "application/json"})
    assert (answer.status, answer.json["error"]) == (404, "not_found")
    assert "location" not in answer.headers
