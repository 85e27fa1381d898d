"""Mail through no-op seats with the ledger on, beside a bare client loop that makes the same round trips.

Both sides fetch one message at a time, read the ledger, write the ledger and ack with a confirmed answer, for the same
number of seats on one event loop and one connection.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.rawclient import BareWorkers, stream_messages
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.process.programs import LocalPrograms
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.adapters.system.logs import configure_logs
from crewlet.company.model import Company, Seat
from crewlet.node.assembly import Node, NodeConfig, Ports
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.mail import Mail
from crewlet.ports.signals import NoSignals
from crewlet.testing.brokers import one_server

SEATS = 20
MESSAGES = 100
ROUNDS = 5


async def measure() -> dict[str, Any]:
    """`mail_per_s`, `bare_per_s` and `mail_vs_bare`: medians over interleaved rounds of SEATS x MESSAGES messages."""
    configure_logs(level="warning")
    with tempfile.TemporaryDirectory() as folder, one_server(Path(folder)) as broker:
        ours = await _Ours.open(broker.url)
        bare = await BareWorkers.open(broker.url, SEATS, MESSAGES)
        ours_rates: list[float] = []
        bare_rates: list[float] = []
        for _ in range(ROUNDS):
            ours_rates.append(await _rate(ours.fill, ours.drain))
            bare_rates.append(await _rate(bare.fill, bare.drain))
        await ours.close()
        await bare.close()
    return {
        "mail_per_s": round(statistics.median(ours_rates)),
        "bare_per_s": round(statistics.median(bare_rates)),
        "mail_vs_bare": round(statistics.median(a / b for a, b in zip(ours_rates, bare_rates, strict=True)), 3),
    }


async def _rate(fill: Callable[[], Awaitable[None]], drain: Callable[[], Awaitable[None]]) -> float:
    await fill()
    begun = time.perf_counter()
    await drain()
    return SEATS * MESSAGES / (time.perf_counter() - begun)


class _Ours:
    """A whole node: leases, screening, ledger, dispatch, the script runner with nothing to do."""

    def __init__(self, node: Node, mail: Mail, connection: Connection) -> None:
        self._node = node
        self._mail = mail
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> "_Ours":
        clock, entropy = SystemClock(), SystemEntropy()
        connection = await Connection.open(
            BrokerAddress(urls=(url,), name="bench:1"), clock=clock, startup_timeout_s=30, replicas=1
        )
        opened: list[NatsMail] = []

        async def open_mail(ack_window_s: float) -> Mail:
            opened.append(NatsMail(connection, clock=clock, entropy=entropy, ack_window_s=ack_window_s))
            await opened[0].start()
            return opened[0]

        async def close_mail() -> None:
            await opened[0].stop()
            await connection.close()

        cells = NatsCells(connection, entropy=entropy)
        company = Company("bench", tuple(Seat(f"seat-{number}") for number in range(SEATS)))
        config = NodeConfig("bench", "bench:1", frozenset({"seats"}), {}, 64, 45.0, {})
        ports = Ports(
            cells,
            cells,
            open_mail,
            close_mail,
            lambda: connection.is_connected,
            LocalPrograms(),
            NoSignals(),
            clock,
            entropy,
            NoDeadline(),
            leases_can_lapse=True,
        )
        node = Node(config, company, ports)
        await node.open()
        await node.start()
        while len(node.health().seats) < SEATS:
            await asyncio.sleep(0.05)
        return cls(node, opened[0], connection)

    async def fill(self) -> None:
        self._mail.pause()
        for _ in range(MESSAGES):
            await asyncio.gather(*(self._node.commands.send_mail(f"seat-{n}", "x") for n in range(SEATS)))

    async def drain(self) -> None:
        self._mail.resume()
        while await stream_messages(self._connection.js, "CREWLET_AGENT"):
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self._node.drain()
        await self._node.close()
