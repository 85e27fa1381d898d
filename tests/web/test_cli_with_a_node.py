"""The command line against a node over real HTTP."""

import http.server
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stub_node import FLEET, HEALTH, STARTED, Served, served

from crewlet.cli import main
from crewlet.node.settings import ApiSettings
from crewlet.node.status import MailOutcome, SeatSnapshot
from crewlet.node.troubles import TroublesSnapshot
from crewlet.ports.errors import Unavailable

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def node(one_server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A node as new, found through the settings file of the working folder."""
    one_server.node.reset()
    monkeypatch.chdir(tmp_path)
    for name in ("CREWLET_URL", "CREWLET_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    write_node_file(tmp_path, one_server.server.url)
    return one_server


def write_node_file(folder: Path, url: str, **more: str) -> None:
    (folder / "crewlet.yaml").write_text("")
    run = folder / ".crewlet" / "run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "node.json").write_text(json.dumps({"url": url, "pid": os.getpid(), "node_id": "n1", **more}))


def finished(message_id: str, outcome: str, detail: str = "") -> MailOutcome:
    return MailOutcome(message_id, "writer", "finished", outcome, detail, "t1", datetime(2026, 1, 1, tzinfo=UTC))


def test_status_shows_the_node_and_the_fleet(node: Served, capsys: Capture) -> None:
    node.node.change(unproven_seconds={"writer": 72.441920609})
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    for words in (
        "n1",
        "connected",
        "writer: 72s",
        "1 of 2",
        "far (zone=us)",
        "roles unmanned  workers",
        "turns running   1",
    ):
        assert words in out
    assert "\x1b" not in out


def test_status_shows_what_a_running_turn_waits_for(node: Served, capsys: Capture) -> None:
    node.node.change(waiting={"writer": "waiting for its provider, next try in 8 s: m: 429"})
    assert main(["status"]) == 0
    assert "waiting         writer: waiting for its provider, next try in 8 s: m: 429" in capsys.readouterr().out


def test_instants_are_shown_to_the_second_and_told_whole_as_json(node: Served, capsys: Capture) -> None:
    node.node.change(started_at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC))
    assert main(["status"]) == 0
    assert "since           2026-01-02T03:04:05Z" in capsys.readouterr().out
    assert main(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["health"]["started_at"] == "2026-01-02T03:04:05.678901Z"


def test_status_as_json_has_the_same_snapshots(node: Served, capsys: Capture) -> None:
    assert main(["status", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["health"]["node"] == HEALTH.node and shown["fleet"]["company"] == "Desk"
    assert shown["url"].startswith("http://127.0.0.1:")


def test_status_fails_when_the_fleet_cannot_be_read_and_still_shows_the_node(node: Served, capsys: Capture) -> None:
    node.node.fleet_problem = Unavailable("the lease store does not answer")
    assert main(["status"]) == 1
    out, err = capsys.readouterr()
    assert "n1" in out and err == "crewlet: The lease store does not answer.\n"


@pytest.mark.parametrize(
    ("change", "fleet_problem", "condition", "sentence"),
    [
        ({"queue": "disconnected"}, None, "no broker", "no connection to its broker"),
        ({"queue": "disconnected"}, Unavailable("nobody answers"), "no broker", "Nobody answers."),
        ({"has_presence": False}, None, "not counted by the fleet", "cannot renew its presence"),
        (
            {"has_presence": False, "presence_error": "no room"},
            None,
            "not counted by the fleet",
            "presence (no room), so",
        ),
        ({"has_presence": False, "id_held_by": "n1:cd"}, None, "its id is another's", "Another process (n1:cd) has"),
        ({}, Unavailable("nobody answers"), "the store does not answer", "Nobody answers."),
    ],
)
def test_status_is_not_ok_while_the_store_is_away(
    node: Served,
    capsys: Capture,
    change: dict[str, Any],
    fleet_problem: Exception | None,
    condition: str,
    sentence: str,
) -> None:
    node.node.change(**change)
    node.node.fleet_problem = fleet_problem
    assert main(["status"]) == 1
    out, err = capsys.readouterr()
    assert ["status", condition] in [line.split(maxsplit=1) for line in out.splitlines()]
    assert sentence in err and err.count("\n") == 1
    assert main(["status", "-o", "json"]) == 1
    assert sentence in json.loads(capsys.readouterr().out)["problem"]


def test_status_warns_of_other_documents_and_names_the_seats_that_nobody_holds(node: Served, capsys: Capture) -> None:
    seats = tuple(replace(seat, free_since=STARTED) if seat.handle == "far" else seat for seat in FLEET.seats)
    node.node.fleet_snapshot = replace(FLEET, seats=seats, other_documents=("n2",), disputed=("far", "old"))
    assert main(["status"]) == 0
    out, err = capsys.readouterr()
    assert ["held", "by", "nobody", "far,", "old"] in [line.split() for line in out.splitlines()]
    assert err == (
        "crewlet: The company's document names other seats on n2 than here: give every node the same one. "
        f"Held by nobody meanwhile: far (since {STARTED:%Y-%m-%dT%H:%M:%SZ}), old.\n"
    )
    node.node.fleet_snapshot = FLEET


def test_the_list_of_seats_says_what_is_the_matter_with_each(node: Served, capsys: Capture) -> None:
    rows = (*FLEET.seats, SeatSnapshot("there", "", "llm", "anywhere", "n2", "n2:cd", 1, STARTED, 9.0))
    rows = (*rows, SeatSnapshot("free", "", "llm", "anywhere"))
    rows = (*rows, SeatSnapshot("left", "", "llm", "anywhere", free_since=STARTED))
    gone = SeatSnapshot("gone", "", "", "", "n1", "n1:ab", 3, STARTED, 9.0)
    node.node.fleet_snapshot = replace(FLEET, seats=rows, strays=(gone,))
    node.node.told = TroublesSnapshot(("n1",), {"writer": "held back: budget_window; last error: no\x1bmodel"})
    assert main(["seat", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    column = [line[lines[0].index("held back") :] for line in lines]
    assert column == [
        "held back: budget_window; last error: no?model",
        "no live node may run it (zone=us)",
        "n2 did not say",
        "no node holds it",
        f"no node holds it since {STARTED:%Y-%m-%dT%H:%M:%SZ}",
        "held, but the company document does not name it",
    ]
    assert main(["seat", "list", "-o", "json"]) == 0
    assert [row["trouble"] for row in json.loads(capsys.readouterr().out)][2] == "n2 did not say"


def test_the_list_of_nodes_fails_where_the_one_asked_is_none_of_them(node: Served, capsys: Capture) -> None:
    node.node.change(has_presence=False, id_held_by="n1:cd")
    assert main(["node", "list"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("n1 ") and "Another process (n1:cd) has this node's id" in err
    assert main(["node", "list", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["id"] == "n1"


def test_lists_are_aligned_and_label_scripts(node: Served, capsys: Capture) -> None:
    assert main(["seat", "list"]) == 0
    header, writer, far = capsys.readouterr().out.splitlines()
    assert header.split() == ["SEAT", "TITLE", "RUNNER", "NODE", "EPOCH", "SINCE", "PLACEMENT", "PAUSED", "TROUBLE"]
    assert writer.split() == ["writer", "Writes", "command", "n1", "7", "2026-01-02T03:04:05Z", "anywhere", "-", "-"]
    assert far.endswith("no live node may run it (zone=us)")
    assert "script" in far and "(no node may)" in far and far.index("script") == header.index("RUNNER")
    assert main(["node", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "n1",
        "1",
        "ingress,seats",
        "zone=eu",
        "4",
        "42s",
        "live",
    ]


def test_nothing_from_elsewhere_can_steer_the_terminal(node: Served, capsys: Capture) -> None:
    node.node.commands.outcomes["k"] = finished("k", "delivered", "a\x1b[2Jb\nc")
    assert main(["seat", "send", "writer", "hi", "--id", "k", "--wait"]) == 0
    assert capsys.readouterr().out == "k\ndelivered: a?[2Jb?c\n"


def test_sending_prints_the_id_alone(node: Served, capsys: Capture) -> None:
    assert main(["seat", "send", "writer", "hello there", "--subject", "Hi"]) == 0
    out, err = capsys.readouterr()
    (mail,) = node.node.commands.sent
    assert (out, err) == (f"{mail['id']}\n", "")
    assert (mail["handle"], mail["body"], mail["subject"]) == ("writer", "hello there", "Hi")


def test_the_same_id_is_the_same_mail_and_said_to_be(node: Served, capsys: Capture) -> None:
    assert main(["seat", "send", "writer", "a", "--id", "k"]) == 0
    assert main(["seat", "send", "writer", "a", "--id", "k"]) == 0
    out, err = capsys.readouterr()
    assert out == "k\nk\n" and "was there already" in err


def test_a_file_or_standard_input_can_be_sent(node: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mail.md").write_text("# Tïtle\n")
    assert main(["seat", "send", "writer", "--file", "mail.md"]) == 0
    for source in (["-"], ["--file", "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
        assert main(["seat", "send", "writer", *source]) == 0
    assert [mail["body"] for mail in node.node.commands.sent] == ["# Tïtle\n", "from a pipe\n", "from a pipe\n"]


def test_a_file_that_cannot_be_sent_is_told(node: Served, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert main(["seat", "send", "writer", "--file", "binary"]) == 1
    assert main(["seat", "send", "writer", "--file", "missing"]) == 1
    assert capsys.readouterr().err == (
        "crewlet: binary is not UTF-8 text.\ncrewlet: missing: No such file or directory.\n"
    )
    assert main(["seat", "send", "writer", "--file", "missing", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"error": "failed", "detail": "missing: No such file or directory."}


@pytest.mark.parametrize("kind", ["argument", "file"])
def test_a_mail_that_is_too_large_is_told_before_it_is_sent(
    node: Served, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    text = "ä" * 4_500_000 if kind == "file" else "x" * 1_048_577
    (tmp_path / "mail.md").write_text(text)
    args = ["--file", "mail.md"] if kind == "file" else [text]
    assert main(["seat", "send", "writer", *args]) == 1
    size = len(text.encode())
    assert capsys.readouterr().err == f"crewlet: The mail is too large: it has {size} bytes; 1048576 are allowed.\n"
    assert node.node.commands.sent == []


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["writer", "a", "--id", "a\nb"], "--id"),
        (["writer", "a", "--id", "✓"], "--id"),
        (["writer", "a", "--id", "\udcff"], "--id"),
        (["writer", "a", "--id", ""], "--id"),
        (["writer", "a", "--id", "x" * 201], "--id"),
        (["writer", "a", "--id", "a b"], "--id"),
        (["writer", "a", "--id", "../b"], "--id"),
        (["wr\udcff", "a"], "HANDLE"),
        (["", "a"], "HANDLE"),
        (["writer", "\udcff"], "TEXT"),
        (["writer", "a", "--subject", "\udcff"], "--subject"),
        (["writer", "a", "--conversation", "\udcff"], "--conversation"),
    ],
)
def test_what_no_request_can_carry_is_wrong_usage(node: Served, capsys: Capture, args: list[str], hint: str) -> None:
    assert main(["seat", "send", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, node.node.commands.sent) == ("", [])
    assert err.startswith(f"crewlet: {hint}: ")


@pytest.mark.parametrize("token", ["a\nb", "a\r", "✓", "\udcff"])
def test_a_token_that_no_header_can_carry_is_told(
    node: Served, monkeypatch: pytest.MonkeyPatch, capsys: Capture, token: str
) -> None:
    monkeypatch.setenv("CREWLET_API_TOKEN", token)
    assert main(["seat", "list", "--url", node.server.url]) == 1
    assert capsys.readouterr().err == (
        "crewlet: CREWLET_API_TOKEN has a line break or another character that no token can have.\n"
    )


@pytest.mark.parametrize(
    ("outcome", "code"), [("delivered", 0), ("no_action", 0), ("failed", 1), ("blocked", 1), ("stopped", 1)]
)
def test_waiting_ends_with_the_outcome_and_its_code(node: Served, capsys: Capture, outcome: str, code: int) -> None:
    node.node.commands.outcomes["k"] = finished("k", outcome, "so it went")
    assert main(["seat", "send", "writer", "a", "--id", "k", "--wait", "-o", "json"]) == code
    shown = json.loads(capsys.readouterr().out)
    assert (shown["id"], shown["outcome"], shown["detail"]) == ("k", outcome, "so it went")


def test_waiting_follows_a_mail_that_is_finished_later(node: Served) -> None:
    later = threading.Timer(0.3, lambda: node.node.commands.outcomes.update(k=finished("k", "delivered")))
    later.start()
    try:
        assert main(["seat", "send", "writer", "a", "--id", "k", "--wait"]) == 0
    finally:
        later.join()


def test_waiting_has_an_end(node: Served, capsys: Capture) -> None:
    assert main(["seat", "send", "writer", "a", "--id", "k", "--wait", "--timeout", "0.2"]) == 1
    assert capsys.readouterr().err == "crewlet: No turn has finished the mail k yet.\n"


def test_an_unknown_seat_is_told_with_the_nearest(node: Served, capsys: Capture) -> None:
    assert main(["seat", "send", "writr", "a"]) == 1
    assert capsys.readouterr().err == "crewlet: The company has no seat 'writr'; did you mean 'writer'?\n"


@pytest.mark.parametrize("name", ["", "..", "writer/mail", "../query/fleet?"])
@pytest.mark.parametrize(
    "command",
    [
        ("seat", "send", "{}", "a"),
        ("seat", "mail", "{}"),
        ("seat", "pause", "{}"),
        ("seat", "pause", "{}", "--change", "--stop-running"),
        ("seat", "resume", "--unit", "{}"),
        ("duty", "run", "{}"),
        ("dlq", "show", "{}"),
        ("seat", "tail", "{}"),
        ("budget", "show", "{}"),
        ("turn", "show", "{}"),
    ],
)
def test_a_name_cannot_reach_another_route(node: Served, capsys: Capture, command: tuple[str, ...], name: str) -> None:
    node.node.commands.outcomes["mail"] = MailOutcome("mail", "writer", "open")
    assert main([word.format(name) for word in command]) == 2
    assert ": nothing is called " in capsys.readouterr().err
    assert not node.node.commands.sent


def test_a_send_is_repeated_under_its_id_while_the_node_cannot_take_it(
    node: Served, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    node.node.commands.problem = Unavailable("nobody answered")
    pauses: list[float] = []

    def heal(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            node.node.commands.problem = None

    monkeypatch.setattr("crewlet.cli.sending.time.sleep", heal)
    assert main(["seat", "send", "writer", "a", "--id", "k"]) == 0
    assert len(pauses) == 2 and [mail["id"] for mail in node.node.commands.sent] == ["k"]


def test_a_send_without_an_answer_says_that_it_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    class HangsUp(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HangsUp)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr("crewlet.cli.sending.time.sleep", lambda _: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        assert main(["seat", "send", "writer", "a", "--id", "k", "--url", url]) == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert capsys.readouterr().err.endswith("Whether it took the mail is not known: repeat it with --id k.\n")


_WANTS = "wants a token: set CREWLET_API_TOKEN to its api.token."
_REFUSES = "refuses the token of CREWLET_API_TOKEN: set CREWLET_API_TOKEN to its api.token"


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with served(api=ApiSettings("127.0.0.1", "auto", "t0ken")) as one:
        yield one


@pytest.mark.parametrize("in_settings", [None, "t0ken", "wrong"])
@pytest.mark.parametrize(
    ("written", "given", "has_url", "says"),
    [
        ("t0ken", None, False, ""),
        ("t0ken", "t0ken", False, ""),
        ("t0ken", "wrong", False, f"{_REFUSES}, or unset CREWLET_API_TOKEN."),
        (None, None, False, _WANTS),
        (None, "t0ken", False, ""),
        ("wrong", None, False, "node.json: set CREWLET_API_TOKEN to its api.token."),
        ("t0ken", None, True, _WANTS),
        ("t0ken", "t0ken", True, ""),
        ("t0ken", "wrong", True, f"{_REFUSES}."),
    ],
)
def test_a_token_is_the_environments_else_the_running_nodes_own_and_never_the_settings_files(
    locked: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    in_settings: str | None,
    written: str | None,
    given: str | None,
    has_url: bool,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CREWLET_API_TOKEN", raising=False)
    write_node_file(tmp_path, locked.server.url, **({"token": written} if written else {}))
    if in_settings is not None:
        (tmp_path / "crewlet.yaml").write_text(f"api: {{token: {in_settings}}}")
    if given is not None:
        monkeypatch.setenv("CREWLET_API_TOKEN", given)
    command = ["seat", "list", *(["--url", locked.server.url] if has_url else [])]
    assert main(command) == (1 if says else 0)
    err = capsys.readouterr().err
    assert err.endswith(f"{says}\n") and err.count("\n") == 1 if says else not err


def test_a_refused_token_says_nothing_of_the_nodes_store(
    locked: Served, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("CREWLET_API_TOKEN", "wrong")
    assert main(["status", "--url", locked.server.url]) == 1
    out, err = capsys.readouterr()
    assert ["status", "ok"] in [line.split() for line in out.splitlines()]
    assert err == f"crewlet: The node at {locked.server.url} {_REFUSES}.\n"


def test_a_mail_that_nobody_knows_of_fails_the_question(node: Served, capsys: Capture) -> None:
    node.node.commands.outcomes["nope"] = MailOutcome("nope", "writer", "unknown")
    sentence = "There is no trace of a mail 'nope' in the inbox, the records or the dead letters of writer."
    assert main(["seat", "mail", "writer", "nope"]) == 1
    assert capsys.readouterr() == ("", f"crewlet: {sentence}\n")
    assert main(["seat", "mail", "writer", "nope", "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["error"], answer["state"], answer["detail"]) == ("unknown_mail", "unknown", sentence)


def test_something_else_at_the_address_is_told(tmp_path: Path, capsys: Capture) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        assert main(["status", "--url", url]) == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert capsys.readouterr().err == f"crewlet: What answers at {url} is not a Crewlet node.\n"
