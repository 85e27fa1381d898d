"""Two real nodes and a store outside that counts, with one turn of a model standing still at each point of its life.

Where a turn stands is decided from outside alone: by a module that is slow to load, by the model's server, by the
store, and by what the link between node and broker loses.
"""

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_kit import BOUND_S, NodeProcess, whole_lines
from process_kit import python, until, with_site

from crewlet.supervisor.broker import free_port
from crewlet.testing.brokers import one_server
from crewlet.testing.faulty_link import FaultyLink, Frame
from crewlet.testing.modelserver import Answer, Asked, Call, ModelServer, Say, model_server

TTL_S = 6.0
UNIT = "desk"
POINTS = {
    "before": "before its first round",
    "model": "inside a model call",
    "between": "between round and tool",
    "tool": "inside a tool, before its effect",
    "answer": "after the effect, before its answer",
    "record": "after the effect, before the record",
    "ack": "after the record, before the ack",
}
"""A seat for each point at which a turn can stand, and the row of the table of docs/effects.md."""

_TABLE = Path(__file__).parents[2] / "docs" / "effects.md"


@dataclass(frozen=True, slots=True)
class Outside:
    """The store, which outlives every node."""

    folder: Path
    url: str

    def lines(self, name: str, order: str) -> list[dict[str, Any]]:
        """What it wrote down of an order: its `calls`, or what it `booked`."""
        file = self.folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in whole_lines(file.read_text())] if file.exists() else []
        return [line for line in lines if line["order"] == order]


@contextmanager
def outside(folder: Path) -> Generator[Outside]:
    """Start the store, for as long as a module's tests last."""
    port = free_port()
    with subprocess.Popen(python("store.py", str(folder), str(port)), stderr=subprocess.DEVNULL) as store:
        try:
            asyncio.run(until(lambda: _accepts(port), within_s=BOUND_S))
            yield Outside(folder, f"http://127.0.0.1:{port}/mcp")
        finally:
            store.kill()


@dataclass(frozen=True, slots=True)
class AskedAt:
    """One request of a model."""

    node: str
    seat: str
    order: str
    at: float


@dataclass
class Scene:
    """One fault, and a seat at each point to meet it.

    Attributes:
        fault: its column in the table.
        victim: whose turns stand still; everything between it and the broker runs over `link`.
        heir: the other node.
        seats: the seat at each point.
        rivals: each has another seat of its group beside it, which is busy for good.
    """

    fault: str
    folder: Path
    store: Outside
    broker_url: str
    link: FaultyLink
    models: ModelServer
    rivals: bool
    asked: list[AskedAt]
    gate: asyncio.Event
    nodes: list[NodeProcess] = field(default_factory=list[NodeProcess])
    held: set[str] = field(default_factory=lambda: set(POINTS))
    lost: set[str] = field(default_factory=set[str])
    is_cut_off: bool = False

    @property
    def victim(self) -> NodeProcess:
        return self.nodes[0]

    @property
    def heir(self) -> NodeProcess:
        return self.nodes[1]

    def order(self, seat: str) -> str:
        return re.sub(r"[^A-Za-z]+", "-", f"{self.fault} {seat}")

    async def to_the_points(self) -> None:
        """Start the nodes, and have a turn stand still at each point."""
        self._file("before").touch()
        for seat in ("between", "tool", "answer"):
            self._file(seat).touch()
        self.link.on_request = self._judge
        self._start("victim", self.link.url, {"STALL": str(self._file("before")), **with_site("stall")})
        seats = [*POINTS, *(f"{seat}-rival" for seat in POINTS if self.rivals)]
        await self.victim.until(lambda: self.victim.holds(*seats), "it holds every seat")
        if not self.rivals:  # with them its coming takes seats away
            self._start("heir", self.broker_url, {})
        for seat in sorted(seats, key=lambda seat: seat in POINTS):
            await self.victim.send(seat, self.order(seat))
        for seat in POINTS:
            await self.victim.until(lambda seat=seat: self._is_there(seat), f"a turn stands {POINTS[seat]}")
        if self.rivals:
            self._start("heir", self.broker_url, {})
        await self.heir.until(self.heir.holds, "the other node is up")

    def let_go(self, *seats: str) -> None:
        """Let the turns of these seats go on; of all by default."""
        for seat in seats or POINTS:
            self.held.discard(seat)
            self._file(seat).unlink(missing_ok=True)
            if seat == "model":
                self.gate.set()

    async def settle(self) -> None:
        """Until every seat is through with its mail, and with one more."""
        for seat in POINTS:
            await self.heir.send(seat, f"next-{self.order(seat)}")
        for seat in POINTS:
            await self.heir.until(lambda seat=seat: self._is_through(seat), f"{seat} goes on")

    async def cell(self, seat: str) -> str:
        """What came of the turn, in the words of the table."""
        order = self.order(seat)
        calls = self.store.lines("calls", order)
        keys = {call["key"] for call in calls}
        booked = [line["key"] for line in self.store.lines("booked", order)]
        assert len(booked) == len(set(booked)) and keys.issuperset(booked), (seat, calls, booked)
        runs = [event for node in self.nodes for event in node.events("turn_started") if order in event["triggers"]]
        outcome = await self.heir.outcome(seat, order) or "no record"
        assert outcome != "delivered" or len(booked) == 1, (seat, booked)
        assert all(call["resource"] == f"seat:{seat}" for call in calls)
        told = ("no call", "1 call")[len(calls)] if len(calls) < 2 else f"{len(calls)} calls, {len(keys)} key"
        return f"{told}; {'ran once' if len(runs) == 1 else 'ran twice' if len(runs) == 2 else runs}; {outcome}"

    def assert_nothing_left_late(self) -> None:
        """Once a seat was its successor's, or its turn was stopped, its first owner asked no model and called nothing.

        Of the calls of one seat, no epoch comes after a later one.
        """
        for seat in POINTS:
            over = [event["at"] for event in self.heir.events("seat_claimed") if event["seat"] == seat]
            over += [event["at"] for event in self.victim.events("agent_turn_stopped") if event["seat"] == seat]
            calls = [
                line
                for order in (self.order(seat), f"next-{self.order(seat)}")
                for line in self.store.lines("calls", order)
            ]
            epochs = [call["epoch"] for call in sorted(calls, key=lambda call: call["at"])]
            assert epochs == sorted(epochs), (seat, calls)
            if not over:
                continue
            asked = [each.at for each in self.asked if (each.node, each.order) == ("victim", self.order(seat))]
            called = [call["at"] for call in calls if call["epoch"] == 1 and call["order"] == self.order(seat)]
            assert max([*asked, *called], default=0.0) <= min(over), (seat, asked, called, over)

    def answer(self, asked: Asked) -> Answer:
        """What the model says: it looks where its point asks for that, books its mail's order, and submits."""
        (seat,) = re.findall(r"the seat `([a-z-]+)`", asked.messages[0]["content"])
        (order,) = re.findall(r'"id": "([^"]+)"', asked.messages[1]["content"])
        node = asked.path.split("/")[1]
        self.asked.append(AskedAt(node, seat, order, time.time()))
        if any(message["role"] == "assistant" for message in asked.messages):
            done = {"outcome": "delivered", "summary": "It is booked.", "evidence": [order]}
            return Say(calls=[Call("submit_work", done)])
        look = [Call("store__look", {"order": order})] if seat == "between" else []
        waits = self.gate if (node, seat) == ("victim", "model") else None
        return Say(calls=[*look, Call("store__book", {"order": order})], after=waits)

    def _start(self, node_id: str, broker_url: str, env: dict[str, str]) -> None:
        labels = dict.fromkeys(POINTS, "")
        company = self._company(node_id)
        node = NodeProcess(self.folder, node_id, broker_url, company=company, labels=labels, ttl_s=TTL_S, env=env)
        self.nodes.append(node)

    def _company(self, node_id: str) -> dict[str, Any]:
        # Each seat is a group of its own: whoever has it keeps it when the other node comes.
        tools = {"servers": {"store": {"url": self.store.url, "call_timeout_s": 600}}}
        roles: list[dict[str, Any]] = []
        for seat in POINTS:
            provider = "ollama" if seat == "before" else "openai"
            url = self.models.url.replace("/v1", f"/{node_id}/v1")
            runner = {"type": "llm", "model": f"{provider}:scripted", "base_url": url, "max_rounds": 4}
            place = {"labels": {seat: ""}}
            roles.append({"handle": seat, "unit": UNIT, "placement": place, "runner": runner, "tools": tools})
            if self.rivals:
                busy = {"type": "script", "steps": [{"sleep": 3600}]}
                roles.append({"handle": f"{seat}-rival", "placement": place, "runner": busy})
        return {"name": "Desk", "units": [{"name": UNIT}], "roles": roles}

    def _file(self, seat: str) -> Path:
        places = {"between": "look", "tool": "arrived", "answer": "booked"}
        where = places.get(seat)
        return self.store.folder / f"{where}.{self.order(seat)}" if where else self.folder / f"stall-{seat}"

    def _is_there(self, seat: str) -> bool:
        match seat:
            case "model":
                return any(each.seat == seat for each in self.asked)
            case "record" | "ack":
                return seat in self.lost
            case "before":
                return self._file(seat).with_suffix(".reached").exists()
            case _:
                file = self._file(seat)
                return file.with_name(f"{file.name}.reached").exists()

    def _judge(self, frame: Frame) -> bytes | None:
        """What the victim sends."""
        if self.is_cut_off and frame.head.startswith(b"HPUB $KV.crewlet_leases."):
            return None
        if "record" in self.held and frame.head.startswith(b"HPUB $KV.crewlet_ledger.record."):
            self.lost.add("record")
            return None
        is_ack = frame.head.startswith(b"PUB $JS.ACK.CREWLET_AGENT.agent-ack.") and frame.body == b"+ACK"
        if "ack" in self.held and is_ack:
            self.lost.add("ack")
            return None
        return frame.raw

    async def _is_through(self, seat: str) -> bool:
        if await self.heir.outcome(seat, f"next-{self.order(seat)}") != "delivered":
            return False
        inbox = await self.heir.inbox(seat)
        return inbox["waiting"] == inbox["in_hand"] == 0


@asynccontextmanager
async def scene(fault: str, folder: Path, store: Outside, *, rivals: bool = False) -> AsyncGenerator[Scene]:
    """Everything for one fault, with each turn at its point."""
    made: list[Scene] = []

    def answer(asked: Asked) -> Answer:
        return made[0].answer(asked)

    with one_server(folder) as broker:
        async with FaultyLink(broker.url) as link, model_server(answer) as models:
            here = Scene(fault, folder, store, broker.url, link, models, rivals, [], asyncio.Event())
            made.append(here)
            try:
                await here.to_the_points()
                yield here
            finally:
                here.let_go()
                for node in here.nodes:
                    node.end()


async def assert_as_documented(here: Scene) -> None:
    """Hold what was observed against the column of the fault in docs/effects.md."""
    observed = {POINTS[seat]: await here.cell(seat) for seat in POINTS}
    claimed = documented(here.fault)
    different = {point: (seen, claimed.get(point)) for point, seen in observed.items() if seen != claimed.get(point)}
    assert not different, different
    here.assert_nothing_left_late()


def documented(fault: str) -> dict[str, str]:
    """A column of the table, by its row."""
    lines = [line.strip("|").split("|") for line in _TABLE.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line] for line in lines]
    (head,) = [row for row in rows if row[0] == "the turn stood"]
    column = head.index(fault)
    return {row[0]: row[column] for row in rows if row[0] in POINTS.values()}


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
