"""Three nodes on this machine, each under its own `crewlet up`, with a cluster of three broker members."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from crewlet.supervisor.broker import free_ports
from crewlet.supervisor.spawn import spawn
from crewlet.testing.demo import processes

LEASE_TTL_S = 10
DWELL_S = 0.3
SERVER = "nats-server"


class DemoFailed(Exception):
    """The demonstration could not be carried through. One sentence for people."""


@dataclass(slots=True)
class DemoNode:
    """One node, its folder and its processes."""

    id: str
    folder: Path
    broker_port: int
    up: subprocess.Popen[bytes] | None = None
    up_process: psutil.Process | None = None

    @property
    def log(self) -> Path:
        return self.folder / "up.log"

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """What the node says of itself in `run/node.json`, or None while there is no node."""
        try:
            return json.loads((self.folder / "data" / "run" / "node.json").read_bytes())
        except (OSError, ValueError):
            return None

    @property
    def url(self) -> str | None:
        facts = self.facts
        return str(facts["url"]) if facts else None

    @property
    def process(self) -> psutil.Process | None:
        """The node's own process, or None when it does not run."""
        facts = self.facts
        return next((process for process in self._tree() if facts and process.pid == facts["pid"]), None)

    @property
    def broker(self) -> psutil.Process | None:
        """The broker member beside the node, or None when it does not run."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == SERVER:
                    return process
        return None

    def said(self, words: str) -> str | None:
        """What its `up` printed last that begins with these words; None when it printed nothing like it."""
        return next((line[line.index(words) :] for line in reversed(self._printed()) if words in line), None)

    def last_words(self) -> str:
        """The end of what its `up` printed, in one line."""
        lines = self._printed()
        return lines[-1][-300:] if lines else "it printed nothing"

    def _printed(self) -> list[str]:
        try:
            return self.log.read_text("utf-8", errors="replace").strip().splitlines()
        except OSError:
            return []

    def _tree(self) -> list[psutil.Process]:
        return processes.live(processes.tree(self.up_process)) if self.up_process else []


@dataclass(slots=True)
class Fleet:
    """The nodes and the folders that they share."""

    root: Path
    nodes: Sequence[DemoNode]
    seats: Sequence[str]
    _known: list[psutil.Process] = field(default_factory=list[psutil.Process])
    _strangers: frozenset[psutil.Process] = frozenset()

    @property
    def evidence(self) -> Path:
        return self.root / "evidence"

    @property
    def reports(self) -> Path:
        return self.root / "desk" / "reports"

    @property
    def broker_urls(self) -> Sequence[str]:
        return [f"nats://127.0.0.1:{node.broker_port}" for node in self.nodes]

    def node(self, node_id: str) -> DemoNode:
        return next(node for node in self.nodes if node.id == node_id)

    def start(self) -> None:
        """Start every `up`. Call it from the main thread: they are killed when that ends."""
        self._strangers = frozenset(processes.descendants())
        for node in self.nodes:
            self.start_one(node)

    def start_one(self, node: DemoNode) -> None:
        """Start one `up`, for the first time or after its end. From the main thread, as `start`."""
        with node.log.open("ab") as log:
            node.up = spawn(
                [sys.executable, "-m", "crewlet.cli", "up", "-c", str(node.folder / "crewlet.yaml")],
                env=_environment(),
                stdout=log,
                stderr=log,
            )
        node.up_process = psutil.Process(node.up.pid)
        self._known.append(node.up_process)

    def check(self) -> None:
        """Every `up` must still run.

        Raises:
            DemoFailed: one has ended; its last line says why.
        """
        for node in self.nodes:
            if node.up is not None and node.up.poll() is not None:
                raise DemoFailed(f"node {node.id} ended with exit code {node.up.returncode}: {node.last_words()}")

    def remember(self) -> None:
        """Note every process there is now, so that none is forgotten when its parents are gone."""
        now = [process for process in processes.descendants() if process not in self._strangers]
        self._known = processes.live({*self._known, *now})

    async def drain(self, timeout_s: float) -> list[str]:
        """SIGTERM every `up` and wait. Returns sentences about those that did not end well."""
        running = [(node, node.up) for node in self.nodes if node.up is not None and node.up.poll() is None]
        for _, up in running:
            up.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while any(up.poll() is None for _, up in running) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        complaints: list[str] = []
        for node, up in running:
            if up.returncode is None:
                complaints.append(f"node {node.id} did not drain within {timeout_s:g} s: {node.last_words()}")
            elif up.returncode != 0:
                complaints.append(f"node {node.id} drained with exit code {up.returncode}: {node.last_words()}")
        return complaints

    def left(self) -> list[psutil.Process]:
        """Processes of the fleet that still live."""
        self.remember()
        return processes.live(self._known)

    def end(self) -> list[psutil.Process]:
        """End whatever is left, by force. Returns what would not go. Harmless when repeated."""
        left = processes.end_all(self._known, self._strangers)
        for node in self.nodes:
            if node.up is not None:
                node.up.poll()
        return left


def prepare(root: Path, example: Path, documents: Path) -> Fleet:
    """Write the files of a fleet below `root`: a copy of the example company, and a folder a node."""
    company = root / "company"
    shutil.copytree(example, company, ignore=shutil.ignore_patterns("__pycache__", "documents"))
    for shared in ("evidence", "desk"):
        (root / shared).mkdir()
    seats = _write_company(company / "company.yaml", root, documents)
    ports = free_ports(6)
    clients, routes = ports[:3], ports[3:]
    nodes: list[DemoNode] = []
    for number, (client, route) in enumerate(zip(clients, routes, strict=True), start=1):
        node = DemoNode(f"n{number}", root / f"n{number}", client)
        node.folder.mkdir()
        settings = {
            "node": {"id": node.id, "data_dir": "data"},
            "company": "../company/company.yaml",
            "coordination": {"type": "embedded-kv", "lease_ttl_seconds": LEASE_TTL_S},
            "stream": {
                "type": "embedded",
                "port": client,
                "replicas": 3,
                "cluster": {"name": "demo", "port": route, "peers": [f"127.0.0.1:{peer}" for peer in routes]},
            },
            "api": {"host": "127.0.0.1", "port": "auto"},
            "startup_timeout_s": 60,
        }
        (node.folder / "crewlet.yaml").write_text(_yaml(settings), "utf-8")
        nodes.append(node)
    return Fleet(root, nodes, seats)


def _write_company(path: Path, root: Path, documents: Path) -> Sequence[str]:
    """Point the company's seats at this fleet's folders; returns the handles."""
    company = yaml.safe_load(path.read_text("utf-8"))
    for role in company["roles"]:
        role["runner"]["env"] = {
            **role["runner"]["env"],
            "DOCS_ROOT": str(documents),
            "DESK_STORE": str(root / "desk"),
            "EVIDENCE_DIR": str(root / "evidence"),
            "DWELL_S": str(DWELL_S),
        }
    path.write_text(_yaml(company), "utf-8")
    return [str(role["handle"]) for role in company["roles"]]


def _environment() -> dict[str, str]:
    """This process's own, without what would speak to another node or name this one."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("CREWLET_")}
    if server := os.environ.get("CREWLET_NATS_SERVER"):
        mine["CREWLET_NATS_SERVER"] = server
    return mine


def _yaml(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)  # pyright: ignore[reportUnknownMemberType]
