"""What a node that has nothing to do takes of the machine: a real process on a real broker."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from benchmarks import plan
from crewlet.testing.brokers import one_server

SEATS = 300
_TTL_S = 15
_IDLE_S = 12.0
"""Two heartbeats and two sweeps, while nothing else happens."""
_BOUND_S = 120.0
_MIB = 1024 * 1024


async def measure() -> dict[str, Any]:
    """`node_300_seats_mb`: the highest resident memory (MiB) of an idle node with so many seats; `node_1_seat_mb`: with
    one; `seat_kb`: the difference, a seat (KiB). Beside them, the figures of `benchmarks.plan`.
    """
    few, many = _idle_node_mib(1), _idle_node_mib(SEATS)
    return {
        f"node_{SEATS}_seats_mb": round(many, 1),
        "node_1_seat_mb": round(few, 1),
        "seat_kb": round((many - few) * 1024 / (SEATS - 1), 1),
        **await plan.measure(),
    }


def _idle_node_mib(seats: int) -> float:
    with tempfile.TemporaryDirectory() as name, one_server(Path(name) / "broker") as broker:
        folder = Path(name)
        roles = "".join(f"  - {{handle: seat-{number}}}\n" for number in range(seats))
        (folder / "company.yaml").write_text(f"name: Idle\nroles:\n{roles}")
        (folder / "crewlet.yaml").write_text(
            f"node: {{id: bench}}\ncoordination: {{type: embedded-kv, lease_ttl_seconds: {_TTL_S}}}\n"
            f"stream: {{type: nats, url: '{broker.url}'}}\n"
        )
        with open(folder / "node.log", "wb") as log:
            node = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.heldnode", f"{name}/crewlet.yaml"], stdout=log, stderr=log
            )
        try:
            _wait_for_seats(folder / ".crewlet" / "run" / "node.json", seats)
            return _highest_rss(psutil.Process(node.pid), _IDLE_S) / _MIB
        finally:
            node.terminate()
            node.wait(60)


def _wait_for_seats(address: Path, seats: int) -> None:
    give_up_at = time.monotonic() + _BOUND_S
    while time.monotonic() < give_up_at:
        try:
            url = json.loads(address.read_text())["url"]
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if len(json.load(answer)["seats"]) >= seats:
                    return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.05)
    raise TimeoutError(f"the node did not hold {seats} seats in time")


def _highest_rss(process: psutil.Process, for_s: float) -> int:
    until, highest = time.monotonic() + for_s, 0
    while time.monotonic() < until:
        highest = max(highest, process.memory_info().rss)
        time.sleep(0.1)
    return highest
