"""Which acks are asked about, and what an answer, or the lack of one, says of the others."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from nats.errors import ConnectionClosedError

from crewlet.adapters.nats.acks import ACK, Acks
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.hand import Held
from crewlet.ports.errors import NotTaken
from crewlet.ports.mail import Delivery


@dataclass
class Wire:
    """A connection of which only acks are known.

    Attributes:
        told: the subjects of acks without a question.
        asked: the answers that are waited for, by subject.
    """

    is_clustered: bool = False
    breaks: int = 0
    is_down: bool = False
    told: list[str] = field(default_factory=list[str])
    asked: dict[str, "asyncio.Future[bytes]"] = field(default_factory=dict[str, "asyncio.Future[bytes]"])

    @property
    def client(self) -> "Wire":
        return self

    def send(self, subject: str, reply: str, payload: bytes) -> None:
        assert (reply, payload) == ("", ACK)
        if self.is_down:
            raise ConnectionClosedError
        self.told.append(subject)

    def post(self, subject: str, payload: bytes, *, timeout_s: float) -> "asyncio.Future[bytes]":
        assert payload == ACK
        if self.is_down:
            raise NotTaken("there is no connection")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked[subject] = answer
        return answer

    def breaks_down(self) -> None:
        self.breaks += 1
        for answer in self.asked.values():
            if not answer.done():
                answer.set_exception(ConnectionClosedError())


@dataclass
class Rig:
    wire: Wire = field(default_factory=Wire)
    proven: list[str] = field(default_factory=list[str])
    repeated: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.acks = Acks(
            cast("Connection", cast("Any", self.wire)),
            let_go=lambda held: self.proven.append(held.reply),
            again=self._again,
        )

    async def _again(self, held: Held) -> None:
        self.repeated.append(held.reply)

    def send(self, *names: str, last: str = "") -> None:
        for name in (*names, *([last] if last else [])):
            self.acks.send(_held(name), is_last=name == last)

    async def settled(self) -> None:
        await asyncio.sleep(0)
        await self.acks.settled()


def _held(name: str) -> Held:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    return Held(Delivery(name, b"", 1, 1, 24, now), name, {}, 1e9)


async def test_the_last_ones_answer_proves_those_before_it() -> None:
    rig = Rig()
    rig.send("a", "b", last="c")
    assert (rig.wire.told, list(rig.wire.asked), rig.acks.count) == (["a", "b"], ["c"], 3)
    rig.send("d")
    assert rig.proven == []
    rig.wire.asked["c"].set_result(b"")
    await rig.settled()
    assert (rig.proven, rig.repeated, rig.acks.count) == (["a", "b", "c"], [], 1)


async def test_no_answer_leaves_none_of_them_proven() -> None:
    rig = Rig()
    rig.send("a", "b", last="c")
    rig.wire.asked["c"].set_exception(TimeoutError())
    await rig.settled()
    assert (rig.proven, rig.repeated, rig.acks.count) == ([], ["a", "b", "c"], 0)


async def test_an_answer_says_nothing_of_acks_over_an_earlier_connection() -> None:
    rig = Rig()
    rig.send("a", "b")
    rig.wire.breaks_down()
    rig.send("c", last="d")
    rig.wire.asked["d"].set_result(b"")
    await rig.settled()
    assert (rig.proven, rig.repeated) == (["c", "d"], ["a", "b"])


async def test_a_break_while_the_answer_is_waited_for_proves_nothing() -> None:
    rig = Rig()
    rig.send("a", last="b")
    rig.wire.breaks_down()
    await rig.settled()
    assert (rig.proven, rig.repeated) == ([], ["a", "b"])


async def test_of_several_servers_each_ack_has_an_answer_of_its_own() -> None:
    rig = Rig(Wire(is_clustered=True))
    rig.send("a", "b", last="c")
    assert (rig.wire.told, list(rig.wire.asked)) == ([], ["a", "b", "c"])
    rig.wire.asked["c"].set_result(b"")
    rig.wire.asked["a"].set_exception(TimeoutError())
    rig.wire.asked["b"].set_result(b"")
    await rig.settled()
    assert (rig.proven, rig.repeated) == (["c", "b"], ["a"])


async def test_what_nothing_follows_is_asked_about_when_told() -> None:
    rig = Rig()
    rig.acks.prove()
    rig.send("a", "b")
    rig.acks.prove()
    rig.acks.prove()
    assert (rig.wire.told, list(rig.wire.asked)) == (["a", "b"], ["b"])
    rig.wire.asked["b"].set_result(b"")
    await rig.settled()
    assert (rig.proven, rig.acks.count) == (["a", "b"], 0)


@pytest.mark.parametrize("broke", [False, True])
async def test_past_the_lease_only_an_unbroken_connection_is_trusted(broke: bool) -> None:
    rig = Rig()
    rig.send("a", "b")
    if broke:
        rig.wire.breaks_down()
    rig.acks.trust()
    await rig.settled()
    assert (rig.proven, rig.repeated) == ([] if broke else ["a", "b"], ["a", "b"] if broke else [])
    assert (rig.wire.asked, rig.acks.count) == ({}, 0)


@pytest.mark.parametrize("last", ["", "c"])
async def test_without_a_connection_each_is_repeated(last: str) -> None:
    rig = Rig()
    rig.wire.is_down = True
    rig.send("a", "b", last=last)
    await rig.settled()
    assert (rig.proven, rig.repeated) == ([], ["a", "b", *([last] if last else [])])
    assert rig.acks.count == 0
