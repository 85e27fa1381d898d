"""A broker whose disk ran full stores nothing more until it is started again: its parent says so, and does that."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from standins import PRELUDE, Up, eventually

from crewlet.supervisor.broker import BrokerPlan
from crewlet.supervisor.natswire import Question, Wire
from crewlet.supervisor.plan import UpPlan

MIB = 1024 * 1024
MOUNT = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m none "$0" && exec "$@"')


def can_mount(folder: Path) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return subprocess.run([*MOUNT, str(folder), "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def up(tmp_path: Path) -> Generator[Up]:
    """A parent whose data directory is a small disk of its own, which nobody else sees."""
    disk = tmp_path / "data"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("no disk can be made here for this test alone")
    broker = BrokerPlan(store_dir=disk / "broker", max_store=1024 * MIB)
    node = (sys.executable, "-c", PRELUDE + "time.sleep(600)")
    running = Up(tmp_path, UpPlan(disk, node, broker=broker), prefix=(*MOUNT, str(disk)))
    yield running
    running.clear()


def ask(wire: Wire, subject: str, payload: bytes, *, timeout_s: float = 1.0) -> dict[str, Any] | None:
    return wire.ask_json([Question(subject, payload)], timeout_s=timeout_s)[0]


def test_a_full_disk_is_an_alarm_and_the_broker_is_started_again_once_there_is_room(up: Up) -> None:
    _, port = up.broker()
    node = up.node()
    filler = Path(f"/proc/{up.process.pid}/root{up.plan.data_dir}/filler")
    with Wire("127.0.0.1", port, None) as wire:
        stream = {"name": "S", "subjects": ["s"]}
        eventually(lambda: "config" in (ask(wire, "$JS.API.STREAM.CREATE.S", json.dumps(stream).encode()) or {}), "S")
        assert ask(wire, "s", b"first", timeout_s=30.0) == {"stream": "S", "seq": 1}
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 56 * MIB)

        def is_full() -> bool:
            ask(wire, "s", b"x" * MIB)
            return "ALARM: broker crewlet cannot write to its store" in up.said()

        eventually(is_full, "the alarm")
    assert "no space left on device" in up.said()
    # Not before there is room, and said once.
    eventually(lambda: not accepts_mail(port), "nothing is stored")
    assert up.said().count("ALARM") == 1 and "is started again:" not in up.said()
    filler.unlink()
    eventually(lambda: accepts_mail(port), f"mail is taken again; {up.said()}")
    with Wire("127.0.0.1", port, None) as wire:
        kept = ask(wire, "$JS.API.STREAM.MSG.GET.S", b'{"seq": 1}', timeout_s=30.0)
    assert kept is not None and "message" in kept
    assert "stores nothing more since a write failed, and is started again: " in up.said()
    assert up.nodes() == [node]


def accepts_mail(port: int) -> bool:
    try:
        with Wire("127.0.0.1", port, None) as wire:
            answer = ask(wire, "s", b"later")
    except OSError:
        return False
    return answer is not None and "seq" in answer
