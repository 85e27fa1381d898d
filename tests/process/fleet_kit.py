"""Real `crewlet node` processes on one broker, and what their seats' programs say that they did."""

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from process_kit import PROGRAMS

from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.document import load_company
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.supervisor.broker import free_port

BOUND_S = 90.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a seat, by its own evidence.

    Attributes:
        node: whose term it worked under.
        first_at, last_at: of its lines, in seconds of the clock that the nodes' logs are stamped with.
    """

    node: str
    epoch: int
    triggers: tuple[str, ...]
    first_at: float
    last_at: float
    is_ended: bool


class NodeProcess:
    """A bare node that was started just now, or one with a parent and a broker of its own.

    Args:
        broker_url: of a broker that runs; empty for `crewlet up`.
        seats: the company: by handle, the labels that each seat asks for.
        company: the company's whole document, in place of `seats`.
        labels: the node's.
        roles: the node's; every role without any.
        grace_s: how long the mail of a seat that left is kept.
        has_parent: `crewlet up` also where the broker is somebody else's.
        coordination: its type.
    """

    def __init__(
        self,
        folder: Path,
        node_id: str,
        broker_url: str,
        *,
        seats: Mapping[str, Mapping[str, str]] | None = None,
        company: Mapping[str, Any] | None = None,
        labels: Mapping[str, str],
        ttl_s: float,
        grace_s: int = 86_400,
        env: Mapping[str, str] | None = None,
        has_parent: bool = False,
        coordination: str = "embedded-kv",
        roles: Sequence[str] = (),
    ) -> None:
        self.id = node_id
        self._evidence = folder
        self._folder = folder / node_id
        self._folder.mkdir()
        # YAML takes JSON as it is.
        (self._folder / "company.yaml").write_text(json.dumps(company or _desk(folder, seats or {})))
        settings = {
            "node": {"id": node_id, "labels": labels} | ({"roles": list(roles)} if roles else {}),
            "coordination": {"type": coordination, "lease_ttl_seconds": ttl_s},
            "stream": {"type": "nats", "url": broker_url} if broker_url else {"type": "embedded", "port": free_port()},
            "mail": {"removed_seat_grace_seconds": grace_s},
        }
        (self._folder / "crewlet.yaml").write_text(json.dumps(settings))
        is_bare = bool(broker_url) and not has_parent
        self._command = [sys.executable, "-m", "crewlet.cli", "node" if is_bare else "up"]
        self._env = {**os.environ, **(env or {})}
        self.process = self._started()

    def restart(self) -> None:
        """Start it again in its folder, after its end."""
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with (self._folder / "node.log").open("ab") as log:
            return subprocess.Popen(self._command, cwd=self._folder, env=self._env, stdout=log, stderr=log)

    @property
    def company(self) -> Path:
        return self._folder / "company.yaml"

    @property
    def url(self) -> str:
        return self._facts()["url"]

    @property
    def node_pid(self) -> int:
        """The process id of the node itself, which changes when its parent starts it again."""
        return self._facts()["pid"]

    @property
    def broker_url(self) -> str:
        """Of the broker beside it. Raises ValueError before it listens."""
        return f"nats://{self._broker()[1]}"

    @property
    def broker_pid(self) -> int:
        return int(self._broker()[2])

    def _broker(self) -> re.Match[str]:
        found = list(re.finditer(r"listens on nats://(\S+) \(process (\d+)\)", self.said()))
        if not found:
            raise ValueError("the broker does not listen yet")
        return found[-1]

    def _facts(self) -> dict[str, Any]:
        return json.loads((self._folder / ".crewlet" / "run" / "node.json").read_text())

    def said(self) -> str:
        return (self._folder / "node.log").read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of its log that tell of such an event; `at` is when, in seconds."""
        lines = (line for line in whole_lines(self.said()) if f'"{name}"' in line and line.startswith("{"))
        told = [event for event in map(json.loads, lines) if event.get("event") == name]
        return [event | {"at": datetime.fromisoformat(event["timestamp"]).timestamp()} for event in told]

    async def health(self) -> dict[str, Any]:
        return await self.ask("/health")

    async def duties(self) -> dict[str, Any]:
        return await self.ask("/query/duties")

    async def holds(self, *handles: str) -> bool:
        return set(handles) <= set((await self.health())["seats"])

    async def send(self, handle: str, mail_id: str) -> None:
        await self.ask(f"/seats/{handle}/mail", body={"body": mail_id}, key=mail_id)

    async def outcome(self, handle: str, mail_id: str) -> str | None:
        """`delivered` once it is finished."""
        return (await self.ask(f"/seats/{handle}/mail/{mail_id}")).get("outcome")

    async def lease_left_s(self, handle: str) -> float:
        """What is left of a held seat's lease, by the store's clock. Raises ValueError while nobody holds it."""
        left = (await self.ask(f"/query/seats/{handle}"))["seat"].get("expires_in")
        if left is None:
            raise ValueError("nobody holds it")
        return left

    async def inbox(self, handle: str) -> dict[str, Any]:
        """What lies in it: `waiting` and `in_hand`."""
        return await self.ask(f"/seats/{handle}/mail")

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Wait for something that this node brings about."""
        give_up_at = time.monotonic() + BOUND_S
        while not await _holds(is_so):
            assert self.process.poll() is None, f"{self.id} has ended\n{self.said()[-3000:]}"
            assert time.monotonic() < give_up_at, f"not within {BOUND_S:g} s: {what}\n{self.said()[-5000:]}"
            await asyncio.sleep(0.05)

    def end(self) -> None:
        """SIGKILL, seen to end, if it still runs."""
        self.process.kill()
        self.process.wait(BOUND_S)

    async def drain(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, BOUND_S)

    async def ask(self, path: str, *, body: object = None, key: str = "") -> dict[str, Any]:
        return await asyncio.to_thread(self._ask_blocking, path, body, key)

    def _ask_blocking(self, path: str, body: object, key: str) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=BOUND_S / 3) as answer:
            return json.load(answer)


def _desk(folder: Path, seats: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    runner = {"type": "command", "command": [sys.executable, str(PROGRAMS / "turn.py"), str(folder)]}
    roles = [{"handle": name, "placement": {"labels": asks}, "runner": runner} for name, asks in seats.items()]
    return {"name": "Desk", "roles": roles}


async def _holds(is_so: Callable[[], bool | Awaitable[bool]]) -> bool:
    try:
        held = is_so()
        return held if isinstance(held, bool) else await held
    except (OSError, ValueError, http.client.HTTPException):
        return False  # it does not answer yet, or broke off


def whole_lines(text: str) -> list[str]:
    """The lines of what another process writes, but the last one while it is half there."""
    return text.rpartition("\n")[0].splitlines()


def runs(folder: Path, handle: str) -> list[Run]:
    """The runs of a seat, in the order in which they began."""
    try:
        lines = [json.loads(line) for line in whole_lines((folder / f"{handle}.jsonl").read_text())]
    except FileNotFoundError:
        return []
    begun: dict[tuple[str, int, tuple[str, ...]], list[dict[str, Any]]] = {}
    for line in lines:
        begun.setdefault((line["owner"], line["epoch"], tuple(line["triggers"])), []).append(line)
    made = [_run(owner, epoch, triggers, of_it) for (owner, epoch, triggers), of_it in begun.items()]
    return sorted(made, key=lambda run: run.first_at)


def _run(owner: str, epoch: int, triggers: tuple[str, ...], lines: Sequence[Mapping[str, Any]]) -> Run:
    # Two runs of one trigger in one tenure would be taken for one by their key, but not by their lines.
    assert [line["phase"] for line in lines].count("begin") == 1, lines
    return Run(
        node=owner.rpartition(":")[0],
        epoch=epoch,
        triggers=triggers,
        first_at=lines[0]["at"],
        last_at=lines[-1]["at"],
        is_ended=lines[-1]["phase"] == "end",
    )


async def publish(url: str, company: Path, mails: list[tuple[str, str]], *, conversation: str = "") -> None:
    """Send mail from outside the fleet, one after the other."""
    clock, entropy = SystemClock(), SystemEntropy()
    connection = await Connection.open(BrokerAddress((url,)), clock=clock, startup_timeout_s=30)
    try:
        mail = NatsMail(connection, clock=clock, entropy=entropy, ack_window_s=1.0)
        await mail.start()
        read = load_company(company)
        outbox = Outbox(mail, lambda: read, clock, "outside")
        for handle, mail_id in mails:
            await outbox.post(
                Envelope(
                    id=mail_id,
                    type="external_notification",
                    timestamp=outbox.timestamp(),
                    source="program",
                    to=handle,
                    conversation=conversation,
                )
            )
        await mail.stop()
    finally:
        await connection.close()
