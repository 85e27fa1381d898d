"""The signals' contract on every implementation, and what a real broker adds to it."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor
from contextlib import AsyncExitStack

import pytest
import structlog

from crewlet.adapters.local.signals import LocalSignals
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.nats.signals import ANSWERS_AT_ONCE, NatsSignals
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.ports.errors import NotLive
from crewlet.ports.signals import MAX_SIGNAL_BYTES, Signals
from crewlet.testing.brokers import Cluster, Server, three_members
from crewlet.testing.contracts.signals import LIMIT_S, SignalsContract, answered, fresh, said_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    with three_members(tmp_path_factory.mktemp("signals")) as running:
        yield running


class LocalWorld:
    def __init__(self) -> None:
        self._signals = LocalSignals()

    async def signals(self) -> Signals:
        return self._signals


class NatsWorld:
    """Each process on a connection of its own, in a cluster to a member of its own."""

    def __init__(self, urls: tuple[str, ...], stack: AsyncExitStack) -> None:
        self._urls = urls
        self._stack = stack
        self._made = 0

    async def connect(self) -> Connection:
        url = self._urls[self._made % len(self._urls)]
        self._made += 1
        connection = await Connection.open(
            BrokerAddress(urls=(url,), name=f"node-{self._made}:1"), clock=SystemClock(), startup_timeout_s=30
        )
        self._stack.push_async_callback(connection.close)
        return connection

    async def signals(self) -> NatsSignals:
        signals = NatsSignals(await self.connect())
        self._stack.push_async_callback(signals.stop)
        return signals


class TestLocalSignals(SignalsContract):
    @pytest.fixture
    def world(self) -> LocalWorld:
        return LocalWorld()

    @pytest.mark.proves("QU-07")
    async def test_every_verb_of_what_was_stopped_says_not_live(self) -> None:
        signals = LocalSignals()
        await signals.stop()
        await _says_not_live(signals)


@pytest.mark.real
class TestNatsSignals(SignalsContract):
    @pytest.fixture
    async def world(self, server: Server) -> AsyncGenerator[NatsWorld]:
        async with AsyncExitStack() as stack:
            yield NatsWorld(server.urls, stack)

    async def test_signals_are_heard_again_when_the_broker_is_back(
        self, world: NatsWorld, server: Server, thread: Executor
    ) -> None:
        a, b = await world.signals(), await world.signals()
        name, heard = fresh("news"), list[bytes]()
        await b.listen(name, heard.append)
        await b.serve(name, _echo)
        await said_until(lambda: a.broadcast(name, b"before"), lambda: heard)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(thread, server.terminate)
        async with asyncio.timeout(LIMIT_S):
            assert list(await a.ask(name, b"down", timeout_s=0.2)) == []
        a.broadcast(name, b"down")
        while_down = list[bytes]()
        await b.listen(name, while_down.append)
        await loop.run_in_executor(thread, server.restart)
        await said_until(lambda: a.broadcast(name, b"after"), lambda: b"after" in heard and while_down)
        assert b"down" not in heard, "nothing is kept for later"
        assert await answered(a, name, b"x") == [b"x"]

    async def test_what_strangers_send_is_passed_over(self, world: NatsWorld) -> None:
        stranger, b = (await world.connect()).client, await world.signals()
        name, heard, asked = fresh("news"), list[bytes](), list[bytes]()

        async def answer(data: bytes) -> bytes:
            asked.append(data)
            return data

        await b.listen(name, heard.append)
        await b.serve(name, answer)
        large = bytes(MAX_SIGNAL_BYTES + 1)
        with structlog.testing.capture_logs() as logs:
            await said_until(
                lambda: stranger.send(topics.signal(name), "", large),
                lambda: any(entry["event"] == "signal_ignored" for entry in logs),
            )
        stranger.send(topics.question(name), "", b"a question without a way back")
        stranger.send(topics.question(name), "crewlet.nowhere", large)
        await said_until(lambda: stranger.send(topics.signal(name), "crewlet.nowhere", b"x"), lambda: heard)
        assert set(heard) == {b"x"} and asked == []

    async def test_more_questions_than_can_be_answered_at_once_are_dropped(self, world: NatsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, running, may_answer = fresh("status"), [0], asyncio.Event()

        async def slow(data: bytes) -> bytes:
            if data == b"there?":
                return data
            running[0] += 1
            await may_answer.wait()
            return data

        await b.serve(name, slow)
        # A question that came before the server knew who serves would be answered by nobody, and not dropped here.
        await answered(a, name, b"there?")
        asking = [asyncio.ensure_future(a.ask(name, b"?", timeout_s=LIMIT_S)) for _ in range(2 * ANSWERS_AT_ONCE)]
        with structlog.testing.capture_logs() as logs:
            async with asyncio.timeout(LIMIT_S):
                while (
                    sum(entry["event"] == "signal_question_dropped" for entry in logs) < ANSWERS_AT_ONCE
                    or running[0] < ANSWERS_AT_ONCE
                ):
                    await asyncio.sleep(0.01)
        assert running[0] == ANSWERS_AT_ONCE
        may_answer.set()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            assert await answered(a, name, b"next") == [b"next"]
        for question in asking:
            question.cancel()
        await asyncio.wait(asking)

    async def test_no_stream_keeps_a_signal(self, world: NatsWorld) -> None:
        connection = await world.connect()
        mail = NatsMail(connection, clock=SystemClock(), entropy=SystemEntropy(), ack_window_s=30.0)
        await mail.start()
        for subject in (topics.signal(fresh("news")), topics.question(fresh("status"))):
            found = await ask(connection, "STREAM.NAMES", {"subject": subject})
            assert not found.get("streams")
        await mail.stop()

    @pytest.mark.proves("QU-07")
    async def test_every_verb_of_what_was_stopped_says_not_live(self, world: NatsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        await a.stop()
        await _says_not_live(a, b)


@pytest.mark.real
@pytest.mark.cluster
class TestNatsSignalsOfThreeMembers(SignalsContract):
    @pytest.fixture
    async def world(self, cluster: Cluster) -> AsyncGenerator[NatsWorld]:
        async with AsyncExitStack() as stack:
            yield NatsWorld(cluster.urls, stack)


async def _says_not_live(stopped: Signals, beside: Signals | None = None) -> None:
    news, status = fresh("news"), fresh("status")
    heard: list[bytes] = []
    with pytest.raises(NotLive):
        stopped.broadcast(news, b"")
    with pytest.raises(NotLive):
        await stopped.listen(news, heard.append)
    with pytest.raises(NotLive):
        await stopped.ask(status, b"", timeout_s=0.1)
    with pytest.raises(NotLive):
        await stopped.serve(status, _echo)
    if beside is not None:
        beside.broadcast(news, b"")
        assert await beside.ask(status, b"", timeout_s=0.3) == ()
    assert heard == []


async def _echo(data: bytes) -> bytes:
    return data
