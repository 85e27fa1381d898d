"""What a command says of a node that it cannot ask."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crewlet.cli import client
from crewlet.cli.whereabouts import Whereless, find_node, is_stopped
from crewlet.node.settings import parse_settings
from crewlet.supervisor import runlock
from crewlet.wiring import _node_file  # pyright: ignore[reportPrivateUsage]

CONFIG = Path("crewlet.yaml")
HOLDS = "from pathlib import Path; from crewlet.supervisor import runlock; lock = runlock.take(Path({!r})); "


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@contextmanager
def holder(path: Path) -> Generator[subprocess.Popen[str]]:
    """A process that has the lock until it is killed."""
    code = HOLDS.format(str(path)) + "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def killed(path: Path) -> int:
    with holder(path) as process:
        pass
    return process.pid


def ended(path: Path) -> None:
    runlock.give_up(runlock.take(path))


def wrote(run: Path, pid: int, **more: Any) -> None:
    (run / "node.json").write_text(json.dumps({"url": "http://h:1", "pid": pid, **more}))


def said(run: Path) -> str:
    with pytest.raises(Whereless) as none:
        find_node(run.parent, CONFIG)
    return str(none.value)


def test_a_node_that_never_ran_is_told_apart_from_one_that_has_ended(run: Path) -> None:
    assert said(run) == "No node has run with crewlet.yaml yet; start one with `crewlet up`."
    ended(run / "up.lock")
    ended(run / "node.lock")
    assert said(run) == "No node runs with crewlet.yaml: the last one has ended; start one with `crewlet up`."


def test_a_node_that_was_killed_is_named_by_its_process(run: Path) -> None:
    pid = killed(run / "node.lock")
    wrote(run, pid)
    assert said(run) == (
        f"No node runs with crewlet.yaml: the last one (process {pid}) ended without a stop, as by a crash or "
        "`kill -9`; start it again with `crewlet up`."
    )


def test_a_parent_that_was_killed_before_its_node_began_is_named(run: Path) -> None:
    pid = killed(run / "up.lock")
    assert f"the last `crewlet up` (process {pid}) ended without a stop" in said(run)


def test_a_node_that_starts_is_said_to_whoever_started_it(run: Path) -> None:
    with holder(run / "up.lock") as up:
        assert said(run).startswith(f"`crewlet up` (process {up.pid}) is still starting the node of crewlet.yaml")
        dead = killed(run / "node.lock")
        wrote(run, dead)
        assert said(run).startswith(
            f"The node of crewlet.yaml (process {dead}) ended without a stop, and `crewlet up` (process {up.pid}) "
            "starts it again"
        )
        with holder(run / "node.lock") as node:
            assert said(run).startswith(f"The node of crewlet.yaml (process {node.pid}) is still starting")
            wrote(run, node.pid, token="t")
            found = find_node(run.parent, CONFIG)
            assert (found.url, found.pid, found.token) == ("http://h:1", node.pid, "t")


def test_a_process_that_merely_has_a_dead_nodes_number_is_not_taken_for_it(run: Path) -> None:
    (run / "node.lock").write_text(f"{os.getpid()}\n")
    wrote(run, os.getpid())
    assert "ended without a stop" in said(run)


def test_what_a_node_without_an_api_writes_of_itself_is_understood(run: Path) -> None:
    settings = parse_settings("api: {port: 0}", run.parent / "crewlet.yaml", environ={})
    settings = replace(settings, node=replace(settings.node, data_dir=run.parent))
    lock = runlock.take(run / "node.lock")
    try:
        with _node_file(settings, None):
            assert said(run).startswith(f"The node of crewlet.yaml (process {os.getpid()}) has no API")
    finally:
        runlock.give_up(lock)


def test_a_node_without_an_api_is_said_to_have_none(run: Path) -> None:
    with holder(run / "node.lock") as node:
        wrote(run, node.pid)
        (run / "node.json").write_text(json.dumps({"url": None, "pid": node.pid}))
        assert "has no API: its api.port is 0" in said(run)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "http://h:1", "pid": "x"}', "\x00"])
def test_a_file_that_no_node_wrote_is_one_sentence(run: Path, text: str) -> None:
    (run / "node.json").write_text(text)
    assert said(run).endswith("name the node with --url.")


def test_a_look_at_a_lock_does_not_keep_its_taker_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlock, "LOOKED_AT_S", 30.0)
    path = run / "node.lock"
    ended(path)
    looks = f"while True: runlock.look(Path({str(path)!r}))"
    code = "from pathlib import Path; from crewlet.supervisor import runlock\n" + looks
    with subprocess.Popen([sys.executable, "-c", code]) as looking:
        try:
            for _ in range(100):
                runlock.give_up(runlock.take(path))
        finally:
            looking.kill()


def test_a_lock_that_is_held_stays_so_and_names_its_holder(run: Path) -> None:
    with holder(run / "up.lock") as up:
        with pytest.raises(runlock.Taken) as taken:
            runlock.take(run / "up.lock")
        assert taken.value.pid == up.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_process_that_stands_still_is_seen_to() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_command_that_waits_for_its_node_says_so_once_and_in_the_end_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "TELL_AFTER_S", 0.02)
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        node = client.NodeClient(url, pid=process.pid)
        with pytest.raises(client.NodeSilent):
            node.get("/health", timeout_s=2.0)
        with pytest.raises(client.NodeSilent) as never:
            node.get("/health", timeout_s=2.0)
        process.kill()
    assert capsys.readouterr().err == (
        f"crewlet: Waiting for the node at {url} (process {process.pid}) to answer, 2 s at most.\n"
    )
    assert str(never.value) == (
        f"The node at {url} did not answer within 2 s: its process {process.pid} is there and stopped; "
        f"`kill -CONT {process.pid}` lets it go on."
    )
