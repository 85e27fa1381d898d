"""Who may speak to the API."""

import json
import socket
from collections.abc import Iterator

import pytest
from stub_node import Served, served

from crewlet.node.settings import ApiSettings
from crewlet.web.guard import MAX_BODY_BYTES

TOKEN = "t0ken"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    with served() as each:
        yield each


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with served(api=ApiSettings("127.0.0.1", "auto", TOKEN)) as each:
        yield each


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil", "::1"]
)
@pytest.mark.parametrize("path", ["/health", "/query/fleet", "/metrics", "/openapi.json"])
def test_a_name_that_is_not_this_machines_is_refused(api: Served, host: str, path: str) -> None:
    answer = api.ask("GET", path, headers={"Host": host})
    assert (answer.status, answer.json["error"]) == (403, "host_refused")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:80", "[::1]:9", "[::1]"])
def test_every_name_of_the_loopback_is_taken(api: Served, host: str) -> None:
    assert api.ask("GET", "/health", headers={"Host": host}).status == 200


def test_the_configured_address_is_taken_as_a_name() -> None:
    with served(api=ApiSettings("10.1.2.3", "auto", TOKEN)) as api:
        assert api.ask("GET", "/health", headers={"Host": "10.1.2.3:80"}).status == 200
        assert api.ask("GET", "/health", headers={"Host": "10.1.2.4:80"}).status == 403


def test_with_a_token_on_every_address_any_name_is_taken() -> None:
    with served(api=ApiSettings("0.0.0.0", "auto", TOKEN)) as api:
        assert api.ask("GET", "/livez", headers={"Host": "node-1.example"}).status == 200
        assert api.ask("GET", "/query/fleet", headers={"Host": "node-1.example"}).status == 401


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_web_page_could_send_unasked_is_refused(api: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    api.node.commands.sent.clear()
    answer = api.ask("POST", "/seats/writer/mail", '{"body": "x"}', headers)
    assert (answer.status, answer.json["error"]) == (415, "not_json")
    assert not api.node.commands.sent


def test_json_with_a_charset_is_json(api: Served) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert api.ask("POST", "/seats/writer/mail", '{"body": "x"}', headers).status == 202


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
def test_probes_need_no_token(locked: Served, path: str) -> None:
    assert locked.ask("GET", path).status == 200


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer é"]
)
@pytest.mark.parametrize("path", ["/query/fleet", "/metrics", "/seats/writer/mail/k", "/openapi.json", "/nope"])
def test_without_the_token_nothing_else_answers(locked: Served, shown: str | None, path: str) -> None:
    answer = locked.ask(
        "GET", path, headers={} if shown is None else {"Authorization": shown.encode("latin-1").decode("latin-1")}
    )
    assert (answer.status, answer.json["error"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_with_the_token_all_answers(locked: Served) -> None:
    assert locked.ask("GET", "/query/fleet", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    assert locked.post("/seats/writer/mail", {"body": "x"}, {"Authorization": f"bearer {TOKEN}"}).status == 202


def test_an_announced_body_over_the_limit_is_refused_before_it_is_read(api: Served) -> None:
    answer = api.ask("POST", "/seats/writer/mail", b"{}", {**JSON, "Content-Length": str(MAX_BODY_BYTES + 1)})
    assert (answer.status, answer.json["error"]) == (413, "too_large")


def test_a_body_that_grows_over_the_limit_is_cut_off(api: Served) -> None:
    piece = b" " * 1_048_576
    answer = api.ask("POST", "/seats/writer/mail", iter([piece] * (MAX_BODY_BYTES // len(piece) + 1)), JSON)
    assert (answer.status, answer.json["error"]) == (413, "too_large")
    assert api.ask("GET", "/livez").status == 200


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("Idempotency-Key", "a", "b"),
        ("Idempotency-Key", "a", "a"),
        ("Content-Type", "application/json", "text/plain"),
        ("Authorization", f"Bearer {TOKEN}", "Bearer wrong"),
    ],
)
def test_a_header_of_which_there_are_two_is_refused(locked: Served, name: str, first: str, second: str) -> None:
    locked.node.commands.sent.clear()
    headers = {**JSON, "Authorization": f"Bearer {TOKEN}"}
    lines = [f"{key}: {value}" for key, value in headers.items() if key != name]
    head = ["POST /seats/writer/mail HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 13", "Connection: close"]
    request = "\r\n".join([*head, *lines, f"{name}: {first}", f"{name.upper()}: {second}", "", '{"body": "x"}'])
    with socket.create_connection(("127.0.0.1", locked.server.port), timeout=60) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 400 ")
    sentence = f"The request has more than one {name} header; send it once."
    assert json.loads(answer.partition("\r\n\r\n")[2]) == {"error": "bad_request", "detail": sentence}
    assert not locked.node.commands.sent
