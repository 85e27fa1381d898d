"""Cold start: from `crewlet up` in a new folder to the end of the first admitted turn."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

_TRIES = 3
_BOUND_S = 60.0


async def measure() -> dict[str, Any]:
    """`cold_start_s`: median of some starts; `cold_start_broker_s`: a bare broker's, to its first answer."""
    ours: list[float] = []
    broker: list[float] = []
    for _ in range(_TRIES):
        broker.append(await asyncio.to_thread(_bare_broker))
        ours.append(await asyncio.to_thread(_cold_start))
    return {
        "cold_start_s": round(statistics.median(ours), 3),
        "cold_start_broker_s": round(statistics.median(broker), 3),
    }


def _bare_broker() -> float:
    from crewlet.supervisor.broker import Broker, BrokerPlan

    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        broker = Broker.start(BrokerPlan(store_dir=Path(folder) / "store"))
        broker.ready(30)
        took = time.monotonic() - begun
        broker.stop()
    return took


def _cold_start() -> float:
    crewlet = [sys.executable, "-m", "crewlet.cli"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*crewlet, "init", folder], check=True, stdout=subprocess.DEVNULL)
        address = Path(folder) / ".crewlet" / "run" / "node.json"
        environment = {**os.environ, "CREWLET_NODE_ID": "bench"}
        begun = time.monotonic()
        with open(Path(folder) / "up.log", "wb") as log:
            up = subprocess.Popen(
                [*crewlet, "up", "-c", f"{folder}/crewlet.yaml"], env=environment, stdout=log, stderr=log
            )
        try:
            _first_turn(address, begun + _BOUND_S)
            return time.monotonic() - begun
        finally:
            up.terminate()
            up.wait(30)


def _first_turn(address: Path, give_up_at: float) -> None:
    while time.monotonic() < give_up_at:
        try:
            url = json.loads(address.read_text())["url"]
            seat = _get(f"{url}/query/fleet")["seats"][0]["handle"]
            sent = _get(f"{url}/seats/{seat}/mail", {"body": "hello"})
            while time.monotonic() < give_up_at:
                if _get(f"{url}/seats/{seat}/mail/{sent['id']}")["state"] == "finished":
                    return
                time.sleep(0.005)
        except (OSError, ValueError, KeyError):
            time.sleep(0.005)
    raise TimeoutError("no turn was finished in time")


def _get(url: str, body: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)
