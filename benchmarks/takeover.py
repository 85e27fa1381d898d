"""How long seats are dark when the node that holds them dies, with a parent and without; and how soon a wedged node is
gone. At the shipped lease TTL.

The node that dies is a real process with programs at work; its peers are two nodes in this process. The seats are as
many as two peers may take between two passes, and the early claims of that interval are unspent.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.fleets import TTL_S, Fleet, company_of
from benchmarks.worlds import World
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.supervisor.broker import free_port
from crewlet.testing.brokers import one_server

_BUSY, _IDLE = 4, 4
_BOUND_S = 120.0


async def measure() -> dict[str, Any]:
    """Seconds from SIGKILL of the node to the first turn elsewhere.

    `crash_takeover_s`: of the slowest of four idle seats, on mail sent at the kill; `in_hand_back_s`: on the slowest of
    four messages that the dead node was working on. `crash_takeover_unsupervised_s`, `in_hand_back_unsupervised_s`: of
    a bare node. `wedge_exit_s`, `gil_wedge_exit_s`: from the moment a bare node's loop is blocked to its end, with the
    interpreter's lock free and held.
    """
    supervised = await _dark_s(is_supervised=True)
    # These mostly wait, side by side.
    bare, wedged, locked = await asyncio.gather(
        _dark_s(is_supervised=False), asyncio.to_thread(_wedge_s, "loop", 75), asyncio.to_thread(_wedge_s, "gil", 1)
    )
    return {
        "crash_takeover_s": round(supervised[0], 3),
        "in_hand_back_s": round(supervised[1], 3),
        "crash_takeover_unsupervised_s": round(bare[0], 3),
        "in_hand_back_unsupervised_s": round(bare[1], 3),
        "wedge_exit_s": round(wedged, 3),
        "gil_wedge_exit_s": round(locked, 3),
        "takeover_lease_ttl_s": TTL_S,
    }


async def _dark_s(*, is_supervised: bool) -> tuple[float, float]:
    """The darkest idle seat, and the mail in hand that was longest in coming back."""
    seats = [seat.handle for seat in company_of(_BUSY + _IDLE).seats]
    with _victim(seats, is_supervised=is_supervised) as victim:
        await asyncio.to_thread(victim.wait_for_seats, len(seats))
        async with _world(victim.broker_url) as world:
            fleet = Fleet(world, company_of(_BUSY + _IDLE))
            begins = await _kill_and_see(fleet, victim, seats)
            await fleet.close()
    return max(begins[_BUSY:]), max(begins[:_BUSY])


async def _kill_and_see(fleet: Fleet, victim: "_Victim", seats: Sequence[str]) -> list[float]:
    ids = [f"mail-{handle}" for handle in seats]
    await asyncio.to_thread(victim.send, list(zip(seats[:_BUSY], ids, strict=False)))
    await asyncio.gather(fleet.join("b"), fleet.join("c"))
    commands = fleet.members["b"].node.commands
    os.kill(victim.node_pid, signal.SIGKILL)
    begun = time.perf_counter()
    idle = zip(seats[_BUSY:], ids[_BUSY:], strict=True)
    await asyncio.gather(*(commands.send_mail(handle, "x", message_id=id_) for handle, id_ in idle))
    return [await fleet.begin_of(id_, _BOUND_S) - begun for id_ in ids]


@contextlib.asynccontextmanager
async def _world(url: str) -> AsyncGenerator[World]:
    clock = SystemClock()
    connection = await Connection.open(BrokerAddress(urls=(url,), name="bench:1"), clock=clock, startup_timeout_s=30)
    try:
        yield World(cast("Any", None), (url,), 1, connection, clock, SystemEntropy())
    finally:
        await connection.close()


class _Victim:
    """A node in a process of its own whose seats' programs never end."""

    def __init__(self, folder: Path, command: Sequence[str], broker_url: str) -> None:
        self._folder = folder
        self.broker_url = broker_url
        with open(folder / "node.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=folder, stdout=log, stderr=log, env=_environment()
            )

    @property
    def node_pid(self) -> int:
        return int(self._facts()["pid"])

    def wait_for_seats(self, count: int) -> None:
        self._until(lambda: len(self._get("/health")["seats"]) >= count, f"{count} seats are held")

    def send(self, mails: Sequence[tuple[str, str]]) -> None:
        """Send, and wait until all of it is worked on."""
        for handle, id_ in mails:
            self._get(f"/seats/{handle}/mail", {"body": "x"}, id_)
        self._until(lambda: self._get("/health")["in_flight"] == len(mails), "all mail is worked on")

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + _BOUND_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if is_so():
                    return
            time.sleep(0.05)
        raise TimeoutError(f"not in time: {what}\n{(self._folder / 'node.log').read_text()[-2000:]}")

    def _facts(self) -> dict[str, Any]:
        return json.loads((self._folder / ".crewlet" / "run" / "node.json").read_text())

    def _get(self, path: str, body: dict[str, str] | None = None, key: str = "") -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        request = urllib.request.Request(f"{self._facts()['url']}{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


@contextlib.contextmanager
def _victim(seats: Sequence[str], *, is_supervised: bool, wedge: str = "") -> Generator[_Victim]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if is_supervised:
            port = free_port()
            stream, url, command = {"type": "embedded", "port": port}, f"nats://127.0.0.1:{port}", ["crewlet.cli", "up"]
        else:
            url = stack.enter_context(one_server(folder / "broker")).url
            stream, command = {"type": "nats", "url": url}, ["crewlet.cli", "node"]
        if wedge:
            command = ["benchmarks.wedgednode", "crewlet.yaml", wedge]
        runner = {"type": "command", "command": ["sleep", "100000"]}
        roles = [{"handle": handle, "runner": runner} for handle in seats]
        settings = {
            "node": {"id": "victim", "max_concurrent": 16},
            "coordination": {"type": "embedded-kv", "lease_ttl_seconds": int(TTL_S)},
            "stream": stream,
        }
        (folder / "company.yaml").write_text(json.dumps({"name": "bench", "roles": roles}))
        (folder / "crewlet.yaml").write_text(json.dumps(settings))
        victim = _Victim(folder, command, url)
        try:
            yield victim
        finally:
            victim.process.kill()
            victim.process.wait(30)
            time.sleep(0.5)  # its broker dies with it, and writes into the folder until then


def _wedge_s(how: str, code: int) -> float:
    """How long a bare node lives on whose loop was blocked."""
    with _victim(["seat-0000"], is_supervised=False, wedge=how) as victim:
        victim.wait_for_seats(1)
        begun = time.perf_counter()
        victim.process.send_signal(signal.SIGUSR1)
        ended = victim.process.wait(_BOUND_S)
        took = time.perf_counter() - begun
    if ended != code:
        raise RuntimeError(f"the wedged node ended with {ended}, not with {code}")
    return took


def _environment() -> dict[str, str]:
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
