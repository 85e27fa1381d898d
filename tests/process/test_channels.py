"""Questions between seats on real nodes over a real broker: a function, a program and a model are asked."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import NodeProcess, whole_lines

from crewlet.mail.work_key import channel_mail_id
from crewlet.testing.brokers import one_server
from crewlet.testing.modelserver import Answer, Asked, Call, Say, model_server

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TTL_S = 6.0
TALKER = Path(__file__).parent / "seats" / "talker.py"
COLLEAGUES = ("function", "program", "model")
SEATS = ("asker", *COLLEAGUES)


@dataclass
class Model:
    """What the model of the seat `model` answers, by how often it has begun with a question.

    Attributes:
        runs: the answers of each run's rounds; the last run's for those that follow.
        begun: how many runs have begun.
        rounds: how many requests came.
    """

    runs: list[list[Say]]
    begun: int = 0
    rounds: int = 0

    def answer(self, asked: Asked) -> Answer:
        done = sum(message["role"] == "assistant" for message in asked.messages)
        self.begun += done == 0
        self.rounds += 1
        run = self.runs[min(self.begun, len(self.runs)) - 1]
        return run[min(done, len(run) - 1)]


@dataclass
class Company:
    """Four seats, each in a group of its own: whoever has one keeps it when another node joins."""

    folder: Path
    broker_url: str
    model: Model
    model_url: str
    asks: tuple[str, ...] = COLLEAGUES
    nodes: list[NodeProcess] = field(default_factory=list[NodeProcess])

    async def node(self, name: str, *seats: str) -> NodeProcess:
        env = {"EVIDENCE": str(self.folder), "ASKS": " ".join(self.asks)}
        function = {"type": "python", "target": "talker:run", "path": str(TALKER.parent), "env": env}
        runners: dict[str, Any] = {
            "asker": function,
            "function": function,
            "program": {"type": "command", "command": [sys.executable, str(TALKER)], "env": env},
            "model": {"type": "llm", "model": "openai:scripted", "base_url": self.model_url},
        }
        roles = [
            {"handle": seat, "placement": {"labels": {seat: ""}}, "runner": runner} for seat, runner in runners.items()
        ]
        node = NodeProcess(
            self.folder,
            name,
            self.broker_url,
            company={"name": "Desk", "roles": roles},
            labels=dict.fromkeys(seats, ""),
            ttl_s=TTL_S,
            env={"OPENAI_API_KEY": "none"},
        )
        self.nodes.append(node)
        return node

    def hold(self, seat: str) -> Path:
        return self.folder / f"{seat}.hold"

    def noted(self, seat: str, phase: str) -> list[dict[str, Any]]:
        file = self.folder / f"{seat}.jsonl"
        lines = whole_lines(file.read_text()) if file.exists() else []
        return [line for line in map(json.loads, lines) if line["phase"] == phase]

    def channels(self) -> dict[str, str]:
        """The channel in which each colleague was asked."""
        return {line["to"]: line["channel"] for line in self.noted("asker", "asked")}

    def heard(self) -> list[tuple[str, str]]:
        """What came to the asker from whom, in order."""
        return sorted((line["source"], line["text"]) for line in self.noted("asker", "heard"))

    async def at_rest(self, node: NodeProcess) -> None:
        """Every mail is finished, by its turn, and none is left in any inbox."""
        await node.until(lambda: len(self.heard()) >= len(self.asks), "the asker has heard of all")
        mails = [("asker", "m1")]
        for colleague, channel in self.channels().items():
            mails += [(colleague, channel_mail_id(channel, "request")), ("asker", channel_mail_id(channel, "message"))]
        for seat, mail_id in mails:
            await node.until(_delivered(node, seat, mail_id), f"{seat} is done with {mail_id}")
        for seat in ("asker", *self.asks):
            await node.until(_is_empty(node, seat), f"nothing is left for {seat}")


def _delivered(node: NodeProcess, seat: str, mail_id: str) -> Callable[[], Any]:
    async def is_so() -> bool:
        return await node.outcome(seat, mail_id) == "delivered"

    return is_so


def _is_empty(node: NodeProcess, seat: str) -> Callable[[], Any]:
    async def is_so() -> bool:
        inbox = await node.inbox(seat)
        return inbox["waiting"] == inbox["in_hand"] == 0

    return is_so


@pytest.fixture
async def company(tmp_path: Path) -> AsyncGenerator[Company]:
    model = Model([])
    with one_server(tmp_path / "broker") as server:
        async with model_server(model.answer) as models:
            made = Company(tmp_path, server.url, model, models.url)
            try:
                yield made
            finally:
                for node in made.nodes:
                    node.end()


@pytest.mark.parametrize(
    "asks", [("function", "program"), pytest.param(COLLEAGUES, marks=pytest.mark.long)], ids=["short", "with a model"]
)
async def test_colleagues_on_another_node_each_answer_once_and_wake_their_asker_once(
    company: Company, asks: tuple[str, ...]
) -> None:
    company.asks = asks
    note = Say(calls=[Call("note", {"text": "somebody counts"})])
    company.model.runs = [[note, Say("Seven, says the model.")]]
    left = await company.node("left", "asker")
    right = await company.node("right", *asks)
    await left.until(lambda: left.holds("asker"), "the asker is held")
    await right.until(lambda: right.holds(*asks), "its colleagues are held")
    await right.send("asker", "m1")
    await company.at_rest(right)
    words = {seat: "Seven, says the model." if seat == "model" else f"{seat} at epoch 1" for seat in asks}
    assert company.heard() == sorted((f"seat:{seat}", text) for seat, text in words.items())
    for seat in ("function", "program"):
        (first,), (second,) = company.noted(seat, "answered"), company.noted(seat, "again")
        assert (first["said"], first["is_error"]) == ("answered asker", False)
        assert second["is_error"] and "that answer counts" in second["said"], second


@pytest.mark.long
async def test_an_asker_and_those_who_answer_that_lose_their_nodes_end_with_one_answer_each_and_one_wake(
    company: Company,
) -> None:
    told = asyncio.Event()
    company.model.runs = [
        [Say(calls=[Call("answer", {"text": "Seven."})]), Say("I have told them.", after=told)],
        [Say("Eight.")],
    ]
    for seat in ("asker", "function", "program"):
        company.hold(seat).touch()
    left = await company.node("left", "asker")
    right = await company.node("right", *COLLEAGUES)
    await left.until(lambda: left.holds("asker"), "the asker is held")
    await right.until(lambda: right.holds(*COLLEAGUES), "its colleagues are held")
    heir = await company.node("heir", *SEATS)
    await heir.until(heir.holds, "the heir is up")
    await heir.send("asker", "m1")

    await left.until(lambda: len(company.noted("asker", "asked")) == 3, "the asker has asked and stands still")
    left.end()
    company.hold("asker").unlink()
    for seat in ("function", "program"):
        await right.until(lambda seat=seat: company.noted(seat, "again") != [], f"{seat} has answered and stands still")
    await right.until(lambda: company.model.rounds == 2, "the model has answered and stands still")
    first = {seat: company.noted(seat, "answered")[0]["text"] for seat in ("function", "program")}
    right.end()
    told.set()
    for seat in ("function", "program"):
        company.hold(seat).unlink()

    await company.at_rest(heir)
    assert company.heard() == [
        ("seat:function", first["function"]),
        ("seat:model", "Seven."),
        ("seat:program", first["program"]),
    ]
    asked = company.noted("asker", "asked")
    assert len(asked) == 6 and len({line["channel"] for line in asked}) == 3, "the re-run asks in the same channels"
    for seat in ("function", "program"):
        run, rerun = company.noted(seat, "answered")
        assert rerun["epoch"] > run["epoch"] and not run["is_error"]
        assert rerun["is_error"] and "that answer counts" in rerun["said"], rerun
        assert all(line["is_error"] for line in company.noted(seat, "again"))
    assert company.model.begun == 2
    assert not [node for node in company.nodes if re.search(r"Traceback|panicked", node.said())]
