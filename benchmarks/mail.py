"""Mail: how fast seats work it, how soon a deferred delivery is with another process, how fast mailboxes are made.

Throughput: SEATS x MESSAGES mails of the same bytes, for every side with one event loop for all and one stream with a
durable a seat, on the same server; what was published before the clock starts is worked until the stream is empty.
The server keeps its store in memory where the machine has a folder for that, so that nobody waits for a busy disk.
All sides run in one process, whose garbage collector is set as a serving node sets its own.
- Ours is a whole node as it serves: leases with their heartbeat, one pull of up to 20 a seat, admission and fence, the
  ledger read before a turn and written after it, one turn a mail in the seat's order, and an ack that the broker
  confirms. The turn itself does nothing.
- `mail_vs_bare`: a loop a seat with the client library alone that makes the same round trips: fetch one, read a key,
  write a key, ack with a confirmed answer. It judges nothing.
- `mail_vs_faststream`: FastStream's pull subscriber, a handler that does nothing. No ledger, no confirmed ack. It pulls
  up to 20 too, and runs those side by side. `mail_vs_faststream_serial` is over the same with pulls of one, where its
  handlers of one seat never overlap, as ours never do.

The others are in `benchmarks.handover` and `benchmarks.mailboxes`.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from benchmarks import handover, mailboxes
from benchmarks.faststreamclient import FastStreamWorkers
from benchmarks.rawclient import BareWorkers, until_empty
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.process.programs import LocalPrograms
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.collector import calm_collector
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.adapters.system.logs import configure_logs
from crewlet.company.model import Company, Seat
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.node.assembly import Node
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.mail import Mail
from crewlet.ports.signals import NoSignals
from crewlet.testing.brokers import one_server
from crewlet.turns.turn import Turn, TurnResult

SEATS = 20
MESSAGES = 100
ROUNDS = 5
BATCH = 20
LIMIT_S = 120.0
"""A part that takes longer ends the benchmark, and says which it was: never a verdict on speed."""
_MEMORY = Path("/dev/shm")


T = TypeVar("T")


class Side(Protocol):
    """One way to work the mail."""

    async def fill(self, bodies: Sequence[bytes]) -> None:
        """Publish each body once to every seat; nothing works it yet."""
        ...

    async def drain(self, messages: int) -> None:
        """Work so many mails of each seat, until the broker has let go of the last."""
        ...

    async def close(self) -> None: ...


async def measure() -> dict[str, Any]:
    """Rates in mails a second, and the medians of the ratios over interleaved rounds."""
    configure_logs(level="warning")
    store = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=store) as folder, one_server(Path(folder)) as broker:
        rates = await _throughput(broker.url)
        handed_over = await within(LIMIT_S, "handing mail over", handover.measure(broker.url))
        made = await within(5 * LIMIT_S, "making mailboxes", mailboxes.measure(broker.url))
    return {
        "mail_per_s": round(statistics.median(rates["ours"])),
        "bare_per_s": round(statistics.median(rates["bare"])),
        "faststream_per_s": round(statistics.median(rates["faststream"])),
        "mail_vs_bare": _ratio(rates["ours"], rates["bare"]),
        "mail_vs_faststream": _ratio(rates["ours"], rates["faststream"]),
        "mail_vs_faststream_serial": _ratio(rates["ours"], rates["serial"]),
        **handed_over,
        **made,
    }


async def _throughput(url: str) -> dict[str, list[float]]:
    sides: dict[str, Side] = {
        "ours": await Ours.open(url),
        "bare": await BareWorkers.open(url, SEATS),
        "faststream": await FastStreamWorkers.open(url, SEATS, BATCH),
        "serial": await FastStreamWorkers.open(url, SEATS, 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    calm_collector()
    for _ in range(ROUNDS):
        for name, side in sides.items():
            await within(LIMIT_S, f"filling for {name}", side.fill([_event() for _ in range(MESSAGES)]))
            begun = time.perf_counter()
            await within(LIMIT_S, f"working as {name}", side.drain(MESSAGES))
            rates[name].append(SEATS * MESSAGES / (time.perf_counter() - begun))
    for side in sides.values():
        await side.close()
    return rates


async def within(limit_s: float, what: str, part: Awaitable[T]) -> T:
    """Await a part of the benchmark, for so long.

    Raises:
        RuntimeError: it has not ended by then.
    """
    print(f"# {what}", file=sys.stderr)
    try:
        async with asyncio.timeout(limit_s):
            return await part
    except TimeoutError as error:
        raise RuntimeError(f"{what} has not ended within {limit_s:g} s") from error


def _event() -> bytes:
    return msgspec.json.encode(
        Envelope(
            id=str(uuid4()),
            type="external_notification",
            timestamp="2030-01-01T12:00:00.000Z",
            source="person",
            to="seat",
            body="x" * 40,
            node="bench",
        )
    )


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


class Ours:
    """A whole node: leases, admission, screening, ledger, dispatch, and turns that do nothing."""

    def __init__(self, node: Node, mail: Mail, connection: Connection, runner: "_Nothing") -> None:
        self._node = node
        self._mail = mail
        self._connection = connection
        self._runner = runner

    @classmethod
    async def open(cls, url: str) -> "Ours":
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
        runner = _Nothing()
        node = Node(config, company, ports, runner=lambda _: runner)
        await node.open()
        await node.start()
        while len(node.health().seats) < SEATS:
            await asyncio.sleep(0.05)
        return cls(node, opened[0], connection, runner)

    async def fill(self, bodies: Sequence[bytes]) -> None:
        self._mail.pause()
        self._runner.expect(len(bodies) * SEATS)
        for body in bodies:
            key = str(uuid4())
            await asyncio.gather(
                *(
                    self._mail.publish(topics.inbox(f"seat-{n}").topic, body, message_id=f"{n}.{key}")
                    for n in range(SEATS)
                )
            )

    async def drain(self, messages: int) -> None:
        self._mail.resume()
        await self._runner.has_run.wait()
        await until_empty(self._connection.js, "CREWLET_AGENT")

    async def close(self) -> None:
        await self._node.drain()
        await self._node.close()


class _Nothing:
    """A runner whose turns have nothing to do."""

    kind = "script"

    def __init__(self) -> None:
        self.has_run = asyncio.Event()
        self._left = 0

    def expect(self, turns: int) -> None:
        self._left = turns
        self.has_run.clear()

    async def run(self, turn: Turn) -> TurnResult:
        self._left -= len(turn.mail)
        if self._left <= 0:
            # Below it when mail was worked twice: its record was lost, and it came back.
            self.has_run.set()
        return TurnResult("no_action")
