"""What a service manager is told, by a bare node and by a parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from standins import PRELUDE, Up

from crewlet.supervisor.notify import SOCKET_ENV, Notify
from crewlet.supervisor.plan import UpPlan
from crewlet.testing.brokers import one_server

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")]

BOUND_S = 60.0


class Manager:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.heard: list[str] = []

    def until(self, line: str) -> None:
        give_up_at = time.monotonic() + BOUND_S
        while line not in self.heard:
            self.socket.settimeout(max(0.01, give_up_at - time.monotonic()))
            self.heard.append(self.socket.recv(4096).decode())


@pytest.fixture
def manager(tmp_path: Path) -> Generator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_a_manager_is_told_once_that_all_is_up_and_at_an_abstract_address_too() -> None:
    address = f"@crewlet-test-{os.getpid()}"
    manager = Manager(address)
    notify = Notify(address)
    for _ in range(2):
        notify.ready()
        notify.alive()
        notify.stopping()
    manager.until("STOPPING=1")
    manager.socket.setblocking(False)
    manager.heard.append(manager.socket.recv(100).decode())
    assert manager.heard == ["READY=1", "WATCHDOG=1", "STOPPING=1", "WATCHDOG=1"]
    manager.socket.close()
    notify.alive()  # nobody listens any more, which is nobody's failure
    Notify().ready()


def test_a_parent_is_ready_when_its_node_is_and_lives_and_stops_and_no_child_can_speak_for_it(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = """
tell("env", os.environ.get("NOTIFY_SOCKET", "none"))
while not (here / "go").exists():
    time.sleep(0.01)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
page.beat()
time.sleep(600)
"""
    monkeypatch.setenv(SOCKET_ENV, str(tmp_path / "notify"))
    up = Up(tmp_path, UpPlan(tmp_path / "data", (sys.executable, "-c", PRELUDE + node), lease_ttl_s=10.0))
    try:
        assert up.told("env") == "none"
        manager.until("WATCHDOG=1")
        assert "READY=1" not in manager.heard and "is up" not in up.said()
        (tmp_path / "go").touch()
        manager.until("READY=1")
        up.process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1")
        assert up.exit_code() == 0
    finally:
        up.clear()
    assert up.said().count("crewlet up: node is up") == 1
    assert manager.heard.count("READY=1") == manager.heard.count("STOPPING=1") == 1


def test_a_bare_node_is_ready_once_it_takes_seats_and_says_that_it_stops(tmp_path: Path, manager: Manager) -> None:
    crewlet = (sys.executable, "-m", "crewlet.cli")
    subprocess.run([*crewlet, "init", "."], cwd=tmp_path, check=True, capture_output=True)
    with one_server(tmp_path / "broker") as server, (tmp_path / "log").open("wb") as log:
        (tmp_path / "crewlet.yaml").write_text(
            f"stream: {{type: nats, url: '{server.url}'}}\n"
            "coordination: {type: embedded-kv, lease_ttl_seconds: 10}\nnode: {id: n1}\n"
        )
        env = {**os.environ, SOCKET_ENV: str(tmp_path / "notify"), "WATCHDOG_USEC": "10000000"}
        node = subprocess.Popen([*crewlet, "node"], cwd=tmp_path, env=env, stdout=log, stderr=log)
        try:
            manager.until("READY=1")
            manager.heard.clear()
            manager.until("WATCHDOG=1")
            node.terminate()
            manager.until("STOPPING=1")
            assert node.wait(BOUND_S) == 0, (tmp_path / "log").read_text()
        finally:
            node.kill()
            node.wait()
