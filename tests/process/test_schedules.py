"""Schedules on real nodes and a real broker, while whoever does the duty is killed: each time ends once, on record."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import NodeProcess, runs
from process_kit import PROGRAMS

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.streams import AGENT, NS
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.duties.asking import Asking
from crewlet.duties.fires import FIRES_BUCKET, Fires, mail_id
from crewlet.testing.brokers import Server, one_server

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(400)]

TTL_S = 10.0
KILLING_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path / "broker") as running:
        yield running


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    connection = await Connection.open(BrokerAddress((url,)), clock=SystemClock(), startup_timeout_s=30)
    try:
        yield connection
    finally:
        await connection.close()


async def fires_of(connection: Connection) -> Fires:
    cells = await NatsCells(connection, entropy=SystemEntropy()).open(FIRES_BUCKET)
    return Fires(cells, Asking(30.0, connection.clock))


def desk(folder: Path, schedules: Mapping[str, str]) -> Mapping[str, Any]:
    """A company of schedules, each with its seat, whose programs leave evidence."""
    runner = {"type": "command", "command": [sys.executable, str(PROGRAMS / "turn.py"), str(folder)]}
    return {
        "name": "Desk",
        "roles": [{"handle": seat, "runner": runner} for seat in dict.fromkeys(schedules.values())],
        "schedules": [
            {"name": name, "seat": seat, "every": "10s", "message": "look"} for name, seat in schedules.items()
        ],
    }


def ran(folder: Path, handle: str) -> Counter[str]:
    """How often a seat was woken for each mail."""
    return Counter(trigger for run in runs(folder, handle) for trigger in run.triggers)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fire_whose_node_is_killed_as_its_mail_leaves_runs_once_also_when_the_broker_has_forgotten_the_mail(
    server: Server, tmp_path: Path, when: str
) -> None:
    company = desk(tmp_path, {"poll": "a"})
    async with connected(server.url) as connection:
        # So short that whoever takes over cannot rest on it.
        config = AGENT.config(1) | {"duplicate_window": NS // 10}
        await ask(connection, f"STREAM.CREATE.{AGENT.name}", config, timeout_s=5.0)
        document = tmp_path / "company.yaml"
        document.write_text(json.dumps(company))
        command = [sys.executable, str(PROGRAMS / "scheduler.py"), server.url, str(document), when]
        doomed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        nodes: list[NodeProcess] = []
        try:
            assert doomed.stderr is not None
            assert await asyncio.to_thread(doomed.stderr.readline) == "holds the duty\n"
            for node_id in ("n1", "n2", "n3"):
                nodes.append(NodeProcess(tmp_path, node_id, server.url, company=company, labels={}, ttl_s=TTL_S))
            assert await asyncio.to_thread(doomed.wait, 60) == -signal.SIGKILL
            fires = await fires_of(connection)
            (claimed,) = await fires.of("poll")
            assert (claimed.fire.state, claimed.fire.by) == ("claimed", "doomed:1")
            mail = mail_id("poll", claimed.fire.instant)
            if when == "after":
                await nodes[0].until(lambda: ran(tmp_path, "a")[mail] == 1, "what it sent is worked")
            await nodes[0].until(lambda: is_fired(fires, claimed.fire.instant), "a node takes the duty over")
            await nodes[0].until(lambda: len(ran(tmp_path, "a")) > 1, "later times are worked as well")
            for node in nodes:
                assert await node.drain() == 0
        finally:
            doomed.kill()
            doomed.wait()
            for node in nodes:
                node.end()
        assert set(ran(tmp_path, "a").values()) == {1}
        await judge(fires, tmp_path, {"poll": "a"}, {"poll": claimed.fire.instant - timedelta(seconds=1)})


async def is_fired(fires: Fires, instant: datetime) -> bool:
    found = await fires.at("poll", instant)
    assert found is not None
    return found.fire.state == "fired"


async def test_while_the_node_with_the_duty_is_killed_again_and_again_each_time_ends_and_runs_once(
    server: Server, tmp_path: Path
) -> None:
    schedules = {f"s{number}": "ab"[number % 2] for number in range(6)}
    company, dice = desk(tmp_path, schedules), random.Random(7)
    nodes = {
        node_id: NodeProcess(
            tmp_path, node_id, server.url, company=company, labels={}, ttl_s=TTL_S, roles=["workers"], has_parent=True
        )
        for node_id in ("n1", "n2", "n3")
    }
    # It works the mail, and lives: what a seat ran is told by its programs, each once, whatever becomes of the duty.
    seats = NodeProcess(tmp_path, "seats", server.url, company=company, labels={}, ttl_s=TTL_S, roles=["seats"])
    try:
        async with connected(server.url) as connection:
            fires = await fires_of(connection)
            await seats.until(lambda: seats.holds("a", "b"), "it holds the seats")
            await seats.until(lambda: begun(fires, schedules), "the schedules have begun")
            since = {name: kept.progress.settled for name, kept in (await fires.all()).items()}
            killed, until = 0, time.monotonic() + KILLING_S
            while time.monotonic() < until or killed < 5:
                await asyncio.sleep(dice.uniform(0, 6))
                holder = await duty_holder(seats)
                if holder is None:
                    continue
                pid = nodes[holder].node_pid
                os.kill(pid, signal.SIGKILL)
                killed += 1
                await nodes[holder].until(lambda pid=pid, node=nodes[holder]: node.node_pid != pid, "it is back")
            ended_at = await fires.now()
            await seats.until(lambda: is_past(fires, schedules, ended_at), "what was due is dealt with")
            for node in nodes.values():
                assert await node.drain() == 0
            ids = {
                mail_id(name, each.fire.instant)
                for name in schedules
                for each in await fires.of(name)
                if each.fire.state == "fired"
            }
            await seats.until(lambda: ids <= {*ran(tmp_path, "a"), *ran(tmp_path, "b")}, "all of it is worked")
            assert await seats.drain() == 0
            await judge(fires, tmp_path, schedules, since)
    finally:
        for node in (*nodes.values(), seats):
            node.end()


async def begun(fires: Fires, schedules: Mapping[str, str]) -> bool:
    return set(await fires.all()) == set(schedules)


async def is_past(fires: Fires, schedules: Mapping[str, str], instant: datetime) -> bool:
    known = await fires.all()
    claimed = [each for name in schedules for each in await fires.of(name) if each.fire.state == "claimed"]
    return not claimed and all(known[name].progress.settled > instant for name in schedules)


async def duty_holder(node: NodeProcess) -> str | None:
    duties = (await node.duties())["duties"]
    return next((duty.get("node") for duty in duties if duty["name"] == "scheduler"), None)


async def judge(fires: Fires, folder: Path, schedules: Mapping[str, str], since: Mapping[str, datetime]) -> None:
    """Every time from `since` on has one end, with its reason; what was fired was run once, and nothing else was."""
    sent: dict[str, set[str]] = {seat: set() for seat in schedules.values()}
    for name, seat in schedules.items():
        kept = await fires.progress(name)
        assert kept is not None
        ends: Counter[datetime] = Counter()
        for fire in [each.fire for each in await fires.of(name)]:
            assert fire.state in ("fired", "skipped_catchup", "refused") and (fire.reason or fire.state == "fired"), (
                fire
            )
            ends[fire.instant] += 1
            if fire.state == "fired":
                sent[seat].add(mail_id(name, fire.instant))
            if fire.overtaken is not None:
                assert fire.overtaken.reason
                at = fire.overtaken.first
                for _ in range(fire.overtaken.count):
                    ends[at] += 1
                    at += timedelta(seconds=10)
                assert at == fire.overtaken.before
        due: list[datetime] = []
        schedule = kept.progress.schedule(name)
        at = schedule.after(since[name])
        while at is not None and at <= kept.progress.settled:
            due.append(at)
            at = schedule.after(at)
        assert ends == Counter(due), name
    assert {seat: ran(folder, seat) for seat in sent} == {seat: Counter(ids) for seat, ids in sent.items()}
