"""A node whose broker does not let it in any more: another server, with a token, where the node's own was."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import psutil
import pytest
from fleet_kit import NodeProcess, runs
from process_kit import until

from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.supervisor.brokerplan import BrokerPlan
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.faulty_link import FaultyLink

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TTL_S = 600.0
"""No lease lapses here: a turn that ends is not ended by that."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with one_server(tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """One that wants a token."""
    with one_server(tmp_path_factory.mktemp("strict"), plan=BrokerPlan(token="a secret")) as running:
        yield running


@pytest.fixture
async def link(server: Server) -> AsyncGenerator[FaultyLink]:
    async with FaultyLink(server.url) as made:
        yield made


async def put(link: FaultyLink, server: Server) -> None:
    """Have another server at the address, from now on."""
    link.server_url = server.url
    link.cut()
    await link.accept()


async def test_a_connection_is_gone_while_it_is_refused_and_not_while_it_is_away(
    link: FaultyLink, server: Server, strict: Server
) -> None:
    connection = await Connection.open(BrokerAddress((link.url,)), clock=SystemClock(), startup_timeout_s=30.0)
    try:
        link.refuse()
        await until(lambda: not connection.is_connected)
        await asyncio.sleep(4.0)  # several tries, each in vain
        assert not connection.is_gone
        await put(link, strict)
        await until(lambda: connection.is_gone)
        await put(link, server)
        await until(lambda: connection.is_connected and not connection.is_gone)
        await connection.client.close()  # as the library does by itself on an error that it takes for final
        assert connection.is_gone
    finally:
        await connection.close()


@pytest.mark.proves("DR-09")
async def test_a_drain_waits_for_its_turn_while_the_broker_is_away_and_ends_it_once_it_is_refused(
    link: FaultyLink, strict: Server, tmp_path: Path
) -> None:
    (tmp_path / "ann.hold").touch()
    node = NodeProcess(tmp_path, "n1", link.url, seats={"ann": {}}, labels={}, ttl_s=TTL_S)
    try:
        await node.until(lambda: node.holds("ann"), "it holds its seat")
        await node.send("ann", "one")
        await node.until(lambda: bool(runs(tmp_path, "ann")), "its program works")
        link.refuse()
        node.process.send_signal(signal.SIGTERM)
        await node.until(lambda: bool(node.events("drain_in_progress")), "it drains")
        assert node.process.poll() is None and not node.events("drain_hurried")
        await put(link, strict)
        await until(lambda: node.process.poll() is not None, within_s=60.0)
        assert node.process.returncode == 0, node.said()[-3000:]
        assert node.events("broker_refuses") and node.events("drain_hurried")
        assert [run.is_ended for run in runs(tmp_path, "ann")] == [False]
        lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
        assert not [line for line in lines if "turn.py" in line and str(tmp_path) in line]
    finally:
        node.end()
