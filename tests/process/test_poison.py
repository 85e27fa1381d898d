"""Mail that kills its node each time: it uses up its deliveries and no more, and nobody pays for it but itself."""

import asyncio
import json
from collections.abc import Generator
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, publish, runs

from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.testing.brokers import Server, one_server

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(240)]

TTL_S = 6.0
BUDGET = 25
LEFT = 2
"""What is left of the budget: the other deliveries are used up at the broker, which counts them all alike."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with one_server(tmp_path_factory.mktemp("broker")) as running:
        yield running


async def use_up(server: Server, handle: str, deliveries: int, *, mails: int = 1) -> None:
    """Take all the mail that waits and hand it back, so often."""
    consumer = f"CREWLET_AGENT.agent-{handle}"
    pulled: asyncio.Queue[int] = asyncio.Queue()

    def note(subject: bytes, reply: bytes, *_: bytes) -> None:
        pulled.put_nowait(int(reply.split(b".")[5]))  # its place in the stream

    address = BrokerAddress(urls=server.urls, name="outside")
    connection = await Connection.open(address, clock=SystemClock(), startup_timeout_s=30)
    try:
        await connection.client.listen("pulled.outside", note)
        ask = json.dumps({"batch": mails, "expires": 30_000_000_000}).encode()
        for _ in range(deliveries):
            connection.client.send(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", "pulled.outside", ask)
            async with asyncio.timeout(30):
                places = [await pulled.get() for _ in range(mails)]
            info = json.loads((await connection.request(f"$JS.API.CONSUMER.INFO.{consumer}", timeout_s=10.0)).data)
            for place in sorted(places):
                reply = f"$JS.ACK.{consumer}.1.{place}.{info['delivered']['consumer_seq']}.0.0"
                await connection.request(reply, b"-NAK", timeout_s=10.0)
    finally:
        await connection.close()


async def test_mail_that_kills_every_node_is_dead_lettered_at_its_budget_and_its_neighbours_are_worked_once(
    server: Server, tmp_path: Path
) -> None:
    nodes: list[NodeProcess] = []

    def start(name: str) -> NodeProcess:
        nodes.append(
            NodeProcess(tmp_path, name, server.url, seats={"desk": {}}, labels={}, ttl_s=TTL_S, has_parent=True)
        )
        return nodes[-1]

    try:
        first = start("first")
        await first.until(lambda: first.holds("desk"), "it holds the seat, whose mailbox is made")
        assert await first.drain() == 0
        await publish(server.url, first.company, [("desk", "poison")])
        await use_up(server, "desk", BUDGET - LEFT)
        await publish(server.url, first.company, [("desk", "one"), ("desk", "two")])

        fleet = [start("left"), start("right")]
        await fleet[0].until(
            lambda: any(node.events("delivery_dead_lettered") for node in fleet), "it is a dead letter"
        )
        for mail in ("one", "two"):
            ended = (mail,)
            await fleet[0].until(
                lambda ended=ended: any(run.is_ended and run.triggers == ended for run in runs(tmp_path, "desk")),
                f"{mail} is worked",
            )
        made = runs(tmp_path, "desk")
        assert [run.triggers for run in made].count(("poison",)) == LEFT
        assert sorted(trigger for run in made if run.is_ended for trigger in run.triggers) == ["one", "two"]

        def ends() -> int:
            return sum(node.said().count("node ended with signal 9") for node in fleet)

        await fleet[0].until(lambda: ends() >= LEFT, "their parents say how they ended")
        assert ends() == LEFT, "the poison killed no more nodes than it had deliveries"
        for node in fleet:
            assert await node.drain() == 0
    finally:
        for node in nodes:
            node.end()


async def test_at_equal_counts_mail_that_kills_every_node_takes_nothing_else_to_the_dead_letters(
    server: Server, tmp_path: Path
) -> None:
    """All of it has used up as many deliveries, so that each node that dies with it in hand costs all of it one."""
    nodes: list[NodeProcess] = []

    def start(name: str) -> NodeProcess:
        nodes.append(
            NodeProcess(tmp_path, name, server.url, seats={"till": {}}, labels={}, ttl_s=TTL_S, has_parent=True)
        )
        return nodes[-1]

    mine, others = ["one", "two"], ["three", "four"]
    try:
        first = start("maker")
        await first.until(lambda: first.holds("till"), "it holds the seat, whose mailbox is made")
        assert await first.drain() == 0
        for ids, conversation in ((["poison", *mine], "c"), (others, "d")):
            await publish(server.url, first.company, [("till", each) for each in ids], conversation=conversation)
        await use_up(server, "till", BUDGET - LEFT, mails=5)

        fleet = [start("east"), start("west")]
        await fleet[0].until(
            lambda: any(node.events("delivery_dead_lettered") for node in fleet), "it is a dead letter"
        )
        await fleet[0].until(
            lambda: sum(len(run.triggers) for run in runs(tmp_path, "till") if run.is_ended) >= 4,
            "all that harms nobody is worked",
        )
        made = runs(tmp_path, "till")
        assert [run.triggers for run in made].count(("poison",)) == LEFT
        worked = [trigger for run in made if run.is_ended for trigger in run.triggers]
        assert sorted(worked) == sorted([*mine, *others])
        assert [each for each in worked if each in mine] == mine and [
            each for each in worked if each in others
        ] == others
        buried = [event["id"] for node in fleet for event in node.events("delivery_dead_lettered")]
        assert buried == ["poison"]
        for node in fleet:
            assert await node.drain() == 0
    finally:
        for node in nodes:
            node.end()
