"""`crewlet up` and `crewlet node` as a user runs them: real processes, a real broker, the files that `init` writes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

CREWLET = (sys.executable, "-m", "crewlet.cli")


def crewlet(folder: Path, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CREWLET, *arguments], check=False, cwd=folder, capture_output=True, text=True, timeout=timeout_s
    )


class Up:
    """One `crewlet up` in a folder that `init` made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "up.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*CREWLET, "up"], cwd=folder, stdout=log, stderr=log)

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads((self.folder / ".crewlet" / "run" / "node.json").read_text())

    def said(self) -> str:
        return self.log.read_text()

    def until(self, holds: Callable[[], object], what: str, bound_s: float = 60) -> None:
        give_up_at = time.monotonic() + bound_s
        while not _holds(holds):
            assert time.monotonic() < give_up_at, f"not within {bound_s} s: {what}\n{self.said()[-3000:]}"
            time.sleep(0.05)

    def until_ready(self, *, but_not: int = 0) -> int:
        self.until(lambda: self.facts["pid"] != but_not and self.health()["seats"], "seats are held")
        return int(self.facts["pid"])

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.facts['url']}/health", timeout=5) as answer:
            return json.load(answer)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except (OSError, ValueError, KeyError):
        return False


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `init` writes, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    assert crewlet(folder, "init", ".").returncode == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def up(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that every test leaves running."""
    running = Up(shutil.copytree(made, tmp_path_factory.mktemp("up"), dirs_exist_ok=True))
    family: list[psutil.Process] = []
    try:
        running.until_ready()
        family = running.family()
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []


def test_a_parent_that_is_asked_for_stacks_has_its_node_print_them_and_lives_on(up: Up) -> None:
    node = up.until_ready()
    before = len(up.said())
    up.process.send_signal(signal.SIGUSR2)
    up.until(lambda: "(most recent call first)" in up.said()[before:], "the stacks are printed")
    assert up.process.poll() is None and up.until_ready() == node


def test_whoever_asks_for_stacks_while_it_starts_ends_nothing(folder: Path) -> None:
    up = Up(folder)
    try:
        up.until(up.family, "its settings are being read")
        up.process.send_signal(signal.SIGUSR2)
        up.until_ready()
        assert up.process.poll() is None
    finally:
        code = up.stop()
    assert code == 0


def test_mail_in_the_hands_of_a_killed_node_is_worked_by_the_next(up: Up) -> None:
    node = up.until_ready()
    words = [f"number {n}" for n in range(3)]
    sent = [crewlet(up.folder, "seat", "send", "greeter", text).stdout.strip() for text in words]
    os.kill(node, signal.SIGKILL)
    assert up.until_ready(but_not=node) != node
    for message_id, text in zip(sent, words, strict=True):
        again = crewlet(up.folder, "seat", "send", "greeter", text, "--id", message_id, "--wait", timeout_s=100)
        assert again.returncode == 0, again
    assert "ended with signal 9; starting it again" in up.said()


def test_mail_in_hand_is_worked_at_once_after_everything_was_killed(folder: Path) -> None:
    """Node, broker and parent, as at a power cut. With this TTL the mail would be dark for ten minutes."""
    settings = folder / "crewlet.yaml"
    settings.write_text(settings.read_text().replace("lease_ttl_seconds: 45", "lease_ttl_seconds: 600"))
    company = folder / "company.yaml"
    quick = company.read_text()
    company.write_text(quick.replace("sleep: 0.2", "sleep: 600"))
    first = Up(folder)
    family: list[psutil.Process] = []
    try:
        first.until_ready()
        family = first.family()
        message_id = crewlet(folder, "seat", "send", "greeter", "hi").stdout.strip()
        first.until(lambda: first.health()["in_flight"], "its turn runs")
    finally:
        first.process.kill()
        first.process.wait()
        assert psutil.wait_procs(family, timeout=60)[1] == []
    company.write_text(quick)
    second = Up(folder)
    try:
        second.until_ready()
        again = crewlet(
            folder, "seat", "send", "greeter", "hi", "--id", message_id, "--wait", "--timeout", "80", timeout_s=100
        )
        assert again.returncode == 0, again
        assert "left_mail_given_back" in second.said()
        assert second.stop() == 0
    finally:
        second.process.kill()
        second.process.wait()


def test_what_init_writes_runs_as_it_is_a_stop_leaves_nothing_and_epochs_grow_at_the_next_start(folder: Path) -> None:
    epochs: list[int] = []
    for words in ("How many words are these?", "And how many are these here?"):
        up = Up(folder)
        up.until_ready()
        family = up.family()
        assert {process.name() for process in family} >= {"nats-server"}
        facts = folder / ".crewlet" / "run" / "node.json"
        assert os.stat(facts).st_mode & 0o777 == 0o600
        sent = crewlet(folder, "seat", "send", "counter", words, "--wait")
        assert sent.returncode == 0 and sent.stdout.splitlines()[1] == f"delivered: {len(words.split())} words", sent
        rows = json.loads(crewlet(folder, "seat", "list", "-o", "json").stdout)
        epochs.append(min(row["epoch"] for row in rows))
        assert up.stop() == 0
        assert psutil.wait_procs(family, timeout=60)[1] == []
        assert not facts.exists()
    assert epochs[1] > epochs[0]


def test_a_node_whose_log_is_a_file_tells_its_api_and_its_leaving_there_in_order_and_nothing_elsewhere(
    folder: Path,
) -> None:
    settings = folder / "crewlet.yaml"
    log = "logging:\n  stderr: false\n  file: {path: node.log, format: json}\n"
    settings.write_text(settings.read_text().replace("logging:\n", log))
    up = Up(folder)
    up.until_ready()
    url = up.facts["url"]
    up.until(lambda: '"node_started"' in (folder / "node.log").read_text(), "its start is over")
    assert up.stop() == 0
    told = [json.loads(line) for line in (folder / "node.log").read_text().splitlines()]
    order = ("api_listening", "node_started", "engine_draining", "drain_complete", "api_stopped", "engine_stopped")
    assert [line["event"] for line in told if line["event"] in order] == list(order)
    assert next(line for line in told if line["event"] == "api_listening")["url"] == url
    assert "api_listening" not in up.said() and "{" not in up.said()


def test_a_log_file_that_cannot_be_opened_is_refused_in_a_sentence(folder: Path) -> None:
    settings = folder / "crewlet.yaml"
    log = "logging:\n  file: {path: no/such/folder/node.log}\n"
    settings.write_text(settings.read_text().replace("logging:\n", log))
    done = crewlet(folder, "up")
    assert done.returncode == 78, done
    path = folder / "no" / "such" / "folder" / "node.log"
    assert f"logging.file.path: {path} cannot be used: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr and "starting it again" not in done.stderr


def test_a_second_up_in_one_folder_is_refused_and_the_first_goes_on(up: Up) -> None:
    second = crewlet(up.folder, "up")
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1 and "already runs on the data directory" in second.stderr
    assert up.process.poll() is None


def test_an_api_port_in_use_ends_up_with_one_sentence(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (folder / "crewlet.yaml").write_text(f"api: {{port: {port}}}\n")
        done = crewlet(folder, "up")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr and "Traceback" not in done.stderr
    assert "starting it again" not in done.stderr


def test_a_bare_node_without_a_broker_of_its_own_says_how_to_get_one(folder: Path) -> None:
    done = crewlet(folder, "node")
    assert done.returncode == 78
    assert "crewlet up" in done.stderr and done.stderr.count("\n") == 1


def test_a_broker_that_is_down_is_waited_for_and_then_named(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        port = free.getsockname()[1]
        (folder / "crewlet.yaml").write_text(
            f"startup_timeout_s: 1\nstream: {{type: nats, url: 'nats://127.0.0.1:{port}'}}\n"
            "coordination: {type: embedded-kv}\nnode: {id: n1}\n"
        )
        done = crewlet(folder, "node")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
