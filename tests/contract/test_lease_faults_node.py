"""Real node processes: buckets that somebody else made, and epochs across restarts without a fleet."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lease_fault_worlds import LIMIT_S, at_last

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.kit.refusal import ConfigRefused
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.supervisor.parent import BROKER_URL_ENV
from crewlet.testing.brokers import Server, one_server

pytestmark = [pytest.mark.real, pytest.mark.process]

NS = 1_000_000_000
COMPANY = """
name: Desk
roles:
  - {handle: writer, runner: {type: script, steps: [{sleep: 0.1}]}}
  - {handle: editor, runner: {type: script, steps: [{sleep: 0.1}]}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


def settings(folder: Path, **blocks: Mapping[str, object]) -> Path:
    """A node's file in a folder of its own; YAML takes JSON as it is."""
    folder.mkdir(exist_ok=True)
    (folder / "company.yaml").write_text(COMPANY)
    path = folder / "crewlet.yaml"
    path.write_text(json.dumps({"node": {"id": "n1"}, "api": {"port": "auto"}, **blocks}))
    return path


@contextmanager
def node(config: Path, url: str) -> Generator[subprocess.Popen[bytes]]:
    env = {**os.environ, BROKER_URL_ENV: url}
    with (config.parent / "node.log").open("ab") as log:
        argv = [sys.executable, "-m", "crewlet.cli", "node", "--config", str(config)]
        process = subprocess.Popen(argv, cwd=config.parent, env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def asked(config: Path, process: subprocess.Popen[bytes], path: str) -> dict[str, Any] | None:
    """What the running node answers; None where it does not yet."""
    try:
        facts = json.loads((config.parent / ".crewlet" / "run" / "node.json").read_text())
        if facts["pid"] != process.pid:
            return None
        with urllib.request.urlopen(f"{facts['url']}{path}", timeout=30) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


async def served(config: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The node's health, once it holds both seats."""

    async def health() -> dict[str, Any] | None:
        assert process.poll() is None, (config.parent / "node.log").read_text()[-3000:]
        return await asyncio.to_thread(asked, config, process, "/health")

    return await at_last(health, lambda shown: shown is not None and len(shown["seats"]) == 2) or {}


async def epochs(config: Path, process: subprocess.Popen[bytes]) -> dict[str, int]:
    await served(config, process)
    fleet = await asyncio.to_thread(asked, config, process, "/query/fleet")
    assert fleet is not None
    return {seat["handle"]: seat["epoch"] for seat in fleet["seats"]}


async def test_epochs_without_a_fleet_grow_across_a_restart(server: Server, tmp_path: Path) -> None:
    config = settings(tmp_path / "node", coordination={"type": "local"})
    with node(config, server.url) as process:
        assert await epochs(config, process) == {"writer": 1, "editor": 1}
        process.kill()
        process.wait(LIMIT_S)
    with node(config, server.url) as process:
        assert await epochs(config, process) == {"writer": 2, "editor": 2}


async def made_by_hand(connection: Connection, bucket: str, max_age_s: float) -> None:
    """A bucket as other tools make it."""
    config = {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": 5,
        "max_age": round(max_age_s * NS),
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "duplicate_window": round((max_age_s or 120) * NS),
    }
    await ask(connection, f"STREAM.CREATE.KV_{bucket}", config)


async def opened(server: Server) -> Connection:
    return await Connection.open(BrokerAddress((server.url,)), clock=SystemClock(), startup_timeout_s=LIMIT_S)


async def test_a_bucket_made_with_another_ttl_decides_it_and_everything_that_follows_from_it(
    server: Server, tmp_path: Path
) -> None:
    connection = await opened(server)
    try:
        await made_by_hand(connection, "crewlet_leases", 6.0)
        stream = {"type": "nats", "url": server.url}
        config = settings(
            tmp_path / "node", stream=stream, coordination={"type": "embedded-kv", "lease_ttl_seconds": 45}
        )
        with node(config, server.url) as process:
            health = await served(config, process)
            assert health["lease_ttl_s"] == 6.0
            first = await epochs(config, process)
            listed = await ask(connection, "CONSUMER.LIST.CREWLET_AGENT")
            windows = {consumer["config"]["ack_wait"] for consumer in listed["consumers"]}
            assert windows == {6 * NS}
            # A heartbeat of a third of what was asked for would let every lease lapse.
            before = await renewals(connection)
            await at_last(lambda: renewals(connection), lambda count: count >= before + 3 * 6)
            assert await epochs(config, process) == first
    finally:
        await connection.close()


async def renewals(connection: Connection) -> int:
    info = await ask(connection, "STREAM.INFO.KV_crewlet_leases")
    return info["state"]["last_seq"]


@pytest.mark.parametrize(
    ("bucket", "age_s", "says"), [("crewlet_leases", 0, "for ever"), ("crewlet_epochs", 60, "after 60 s")]
)
async def test_a_bucket_whose_age_would_break_leases_is_refused_in_one_sentence(
    server: Server, bucket: str, age_s: float, says: str
) -> None:
    connection = await opened(server)
    try:
        await made_by_hand(connection, bucket, age_s)
        cells, clock, entropy = NatsCells(connection, entropy=SystemEntropy()), SystemClock(), SystemEntropy()
        leases, epochs = await cells.open(leases_bucket(45.0)), await cells.open(EPOCHS_BUCKET)
        with pytest.raises(ConfigRefused, match=rf"^bucket {bucket}: .*{says}.*\.$"):
            LeaseStore(leases, epochs, clock=clock, entropy=entropy)
    finally:
        await connection.close()
