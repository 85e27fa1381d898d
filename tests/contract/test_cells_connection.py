"""Bringing up, losing and keeping the connection to a broker."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from crewlet.adapters.nats import connection as connection_module
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.translate import NobodyThere
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import BucketSpec
from crewlet.ports.errors import Misuse, NotLive, NotTaken, Unavailable
from crewlet.supervisor.broker import BrokerPlan
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.faulty_link import FaultyLink, Frame

LIMIT_S = 30.0


@asynccontextmanager
async def opened(
    url: str, *, timeout_s: float = LIMIT_S, states: list[str] | None = None, token: str | None = None
) -> AsyncGenerator[Connection]:
    connection = await Connection.open(
        BrokerAddress(urls=(url,), token=token, name="node-a:1f"),
        clock=SystemClock(),
        startup_timeout_s=timeout_s,
        on_state=None if states is None else states.append,
    )
    try:
        yield connection
    finally:
        await connection.close()


async def opening_of(link: FaultyLink) -> Connection:
    return await Connection.open(BrokerAddress((link.url,)), clock=SystemClock(), startup_timeout_s=LIMIT_S)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def pretender(**info: object) -> AsyncGenerator[str]:
    """A server that says this of itself, accepts everybody and knows nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = {"server_id": "x", "max_payload": 1048576, "headers": True, "proto": 1, **info}
        writer.write(b"INFO " + json.dumps(told).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"PUB $JS.API.INFO "):
                inbox = line.split()[2]
                await reader.readline()
                writer.write(b"HMSG " + inbox + b" 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


@pytest.mark.parametrize("version", ["2.10.29", "1.4.1", "2.9.0-beta", ""])
async def test_a_broker_that_is_too_old_is_refused_in_one_sentence(version: str) -> None:
    async with pretender(version=version, jetstream=True) as url:
        with pytest.raises(ConfigRefused, match=r"^stream\.url: .* 2\.11 or newer\.$"):
            async with opened(url):
                pass


async def test_a_broker_without_jetstream_is_refused_in_one_sentence() -> None:
    async with pretender(version="2.15.1") as url:
        with pytest.raises(ConfigRefused, match=r"^stream\.url: .* has no JetStream; .*\.$"):
            async with opened(url):
                pass


async def test_a_broker_whose_jetstream_has_no_leader_is_waited_for() -> None:
    async with pretender(version="2.15.1", jetstream=True) as url:
        with pytest.raises(Unavailable, match="was not ready within 1 s"):
            async with opened(url, timeout_s=1):
                pass


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_wrong_credentials_are_refused_at_once_and_not_shown(tmp_path: Path, token: str | None) -> None:
    with one_server(tmp_path, plan=BrokerPlan(token="right")) as server:
        with pytest.raises(ConfigRefused, match=r"refuses these credentials") as refusal:
            async with opened(server.url, token=token):
                pass
        assert "wrong" not in str(refusal.value)
        async with opened(server.url, token="right") as connection:
            assert connection.is_connected


async def test_tls_that_the_broker_does_not_offer_is_refused_before_the_token_is_sent(server: Server) -> None:
    async with FaultyLink(server.url) as link:
        heard: list[bytes] = []

        def note(frame: Frame) -> bytes:
            heard.append(frame.head)
            return frame.raw

        link.on_request = note
        address = BrokerAddress(urls=(link.url.replace("nats://", "tls://"),), token="secret")
        with pytest.raises(ConfigRefused, match=r"stream\.tls"):
            await Connection.open(address, clock=SystemClock(), startup_timeout_s=LIMIT_S)
        assert not any(b"secret" in head for head in heard)


@pytest.mark.parametrize(
    ("address", "where"),
    [
        (BrokerAddress(("nats://127.0.0.1:1",), credentials="/missing.pem"), "stream.credentials"),
        (BrokerAddress(("nats://127.0.0.1:1",), tls_ca="/missing.pem"), "stream.tls.ca"),
        (BrokerAddress(("nats://127.0.0.1:1",), tls_cert=__file__, tls_key="/missing.pem"), "stream.tls.key"),
    ],
)
async def test_a_file_that_is_not_there_is_named(address: BrokerAddress, where: str) -> None:
    with pytest.raises(ConfigRefused, match=rf"^{where}: .*missing\.pem"):
        await Connection.open(address, clock=SystemClock(), startup_timeout_s=1)


@pytest.mark.parametrize("url", ["", "127.0.0.1:4222", "http://127.0.0.1:1", "nats://", "nats://host:port"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigRefused, match=r"^stream\.url: .*nats://host:port\.$"):
        await Connection.open(BrokerAddress((url,)), clock=SystemClock(), startup_timeout_s=1)


async def test_a_broker_that_is_down_is_waited_for_with_a_bound_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_SAY_SO_EVERY_S", 0.2)
    with capture_logs() as logs, pytest.raises(Unavailable, match="was not ready within 4 s"):
        async with opened("nats://127.0.0.1:1", timeout_s=4):
            pass
    waiting = [line for line in logs if line["event"] == "broker_waiting"]
    assert len(waiting) >= 2 and "waited_s" in waiting[0]


async def test_a_broker_that_comes_up_late_is_found(server: Server) -> None:
    async with FaultyLink(server.url) as link:
        link.lose_everything()
        opening = asyncio.ensure_future(opening_of(link))
        await until(lambda: link.lost > 0)
        link.heal()
        await (await opening).close()


async def test_a_bring_up_that_is_cancelled_leaves_nothing_open(server: Server) -> None:
    async with FaultyLink(server.url) as link:
        link.lose_everything()
        opening = asyncio.ensure_future(opening_of(link))
        await until(lambda: link.lost > 0)
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        await until(lambda: link.connections == 0)


@pytest.mark.real
async def test_what_waits_for_an_answer_is_told_at_once_when_the_connection_breaks(server: Server) -> None:
    states: list[str] = []
    async with FaultyLink(server.url) as link, opened(link.url, states=states) as connection:
        link.lose_everything()
        asking = asyncio.ensure_future(connection.request("$JS.API.INFO", timeout_s=1000))
        await until(lambda: link.lost > 0)
        link.cut()
        with pytest.raises(Unavailable, match="broke"):
            async with asyncio.timeout(LIMIT_S):
                await asking
        with pytest.raises(NotTaken):
            await connection.request("$JS.API.INFO", timeout_s=1000)
        link.heal()
        await until(lambda: states == ["connected", "disconnected", "connected"])
        await connection.request("$JS.API.INFO", timeout_s=LIMIT_S)


@pytest.mark.real
@pytest.mark.parametrize(
    "line",
    [
        b"-ERR 'Maximum Connections Exceeded'",
        b"-ERR 'Authorization Violation'",
        b"-ERR 'Stale Connection'",
        b"rubbish",
    ],
)
async def test_an_error_line_costs_a_connection_but_never_the_client(server: Server, line: bytes) -> None:
    states: list[str] = []
    async with FaultyLink(server.url) as link, opened(link.url, states=states) as connection:
        link.inject(line + b"\r\n")
        await until(lambda: states[1:] == ["disconnected", "connected"])
        await connection.request("$JS.API.INFO", timeout_s=LIMIT_S)


@pytest.mark.real
async def test_a_frozen_broker_is_noticed_and_found_again(tmp_path: Path) -> None:
    states: list[str] = []
    with one_server(tmp_path) as server:
        async with opened(server.url, states=states) as connection:
            server.freeze()
            try:
                await until(lambda: states[-1] == "disconnected")
            finally:
                server.thaw()
            await until(lambda: states[-1] == "connected")
            await connection.request("$JS.API.INFO", timeout_s=LIMIT_S)


@pytest.mark.real
async def test_however_much_is_to_be_sent_a_frozen_broker_is_noticed_and_a_cancellation_is_not_lost(
    tmp_path: Path,
) -> None:
    states: list[str] = []
    heard: list[bytes] = []

    def take(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        heard.append(data)

    async def listen_and_wait(number: int) -> None:
        await connection.client.listen(f"to.{number}", take)
        await asyncio.Event().wait()

    with one_server(tmp_path) as server:
        async with opened(server.url, states=states) as connection:
            await connection.client.listen("sent", take)
            server.freeze()
            try:
                for _ in range(20):
                    connection.client.send("elsewhere", "", b"x" * 1_000_000)
                listening = [asyncio.create_task(listen_and_wait(number)) for number in range(2_000)]
                await asyncio.sleep(0.1)
                for task in listening:
                    task.cancel()
                _, uncancelled = await asyncio.wait(listening, timeout=LIMIT_S)
                await until(lambda: states[-1] == "disconnected")
            finally:
                server.thaw()
            await until(lambda: states[-1] == "connected")
            await connection.request("$JS.API.INFO", timeout_s=LIMIT_S)
            connection.client.send("sent", "", b"after")
            await until(lambda: heard == [b"after"])
            for task in uncancelled:
                task.cancel()
            assert not uncancelled


@pytest.mark.real
async def test_a_listener_that_raises_does_not_end_the_reconnecting(server: Server) -> None:
    states: list[str] = []

    def broken(state: str) -> None:
        raise RuntimeError(state)

    async with FaultyLink(server.url) as link, opened(link.url) as connection:
        forget = connection.listen(broken)
        connection.listen(states.append)
        link.cut()
        await until(lambda: states == ["disconnected", "connected"])
        forget()
        forget()


@pytest.mark.real
async def test_a_request_says_whether_it_may_have_had_an_effect(server: Server) -> None:
    async with opened(server.url) as connection:
        with pytest.raises(NobodyThere):
            await connection.request("nobody.listens", timeout_s=LIMIT_S)
        with pytest.raises(Misuse):
            await connection.request("big", b"x" * (9 * 1024 * 1024), timeout_s=LIMIT_S)
        with pytest.raises(Misuse):
            await connection.request("big", b"x" * (8 * 1024 * 1024), timeout_s=LIMIT_S, headers={"Name": "value"})
        assert connection.is_connected
    with pytest.raises(NotLive):
        await connection.request("late", timeout_s=LIMIT_S)
    await connection.close()


@pytest.mark.real
async def test_the_broker_shows_the_connection_under_the_incarnation_of_its_owner(server: Server) -> None:
    async with opened(server.url):
        raw = await asyncio.to_thread(lambda: urlopen(f"{server.broker.monitor_url}/connz").read())
        assert "node-a:1f" in [shown.get("name") for shown in json.loads(raw)["connections"]]


@pytest.mark.real
async def test_a_bucket_is_found_where_there_is_one_and_not_made_by_looking(server: Server) -> None:
    spec = BucketSpec("found_or_not")
    async with opened(server.url) as connection:
        cells = NatsCells(connection, entropy=SystemEntropy())
        assert await cells.find(spec) is None
        assert await cells.find(spec) is None
        await (await cells.open(spec)).create("key", b"value")
        found = await cells.find(spec)
        assert found is not None and [entry.key for entry in await found.list()] == ["key"]
