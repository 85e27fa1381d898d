"""Whole nodes in this process, each on a connection of its own, with runners that note when a turn begins."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.worlds import World
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.nats.signals import NatsSignals
from crewlet.adapters.process.programs import LocalPrograms
from crewlet.company.model import Company, Seat
from crewlet.node.assembly import Node
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.mail import Mail
from crewlet.turns.turn import Turn, TurnResult

TTL_S = 45.0


@dataclass(slots=True)
class Member:
    """One node and what it stands on."""

    node: Node
    connection: Connection
    signals: NatsSignals

    async def leave(self) -> None:
        """Drain, and go."""
        await self.node.drain()
        await self.node.close()
        await self.signals.stop()
        await self.connection.close()


@dataclass(slots=True)
class Fleet:
    """The nodes of one company of seats that run anywhere.

    Attributes:
        began: `time.perf_counter` of the first turn on a message, by the message's id.
    """

    world: World
    company: Company
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    began: dict[str, float] = field(default_factory=dict[str, float])

    async def join(self, node_id: str) -> Member:
        """Start a node on the next server of the world."""
        world = self.world
        urls = (world.urls[len(self.members) % len(world.urls)],)
        owner = f"{node_id}:{world.entropy.token(4)}"
        connection = await Connection.open(
            BrokerAddress(urls=urls, name=owner), clock=world.clock, startup_timeout_s=30, replicas=world.replicas
        )
        opened: list[NatsMail] = []

        async def open_mail(ack_window_s: float) -> Mail:
            mail = NatsMail(
                connection,
                clock=world.clock,
                entropy=world.entropy,
                ack_window_s=ack_window_s,
                replicas=world.replicas,
            )
            await mail.start()
            opened.append(mail)
            return mail

        async def close_mail() -> None:
            await opened[0].stop()

        cells, signals = NatsCells(connection, entropy=world.entropy), NatsSignals(connection)
        ports = Ports(
            lease_cells=cells,
            cells=cells,
            open_mail=open_mail,
            close_mail=close_mail,
            is_linked=lambda: connection.is_connected,
            programs=LocalPrograms(),
            signals=signals,
            clock=world.clock,
            entropy=world.entropy,
            deadline=NoDeadline(),
            leases_can_lapse=True,
        )
        config = NodeConfig(
            node_id=node_id,
            owner=owner,
            roles=frozenset({"seats"}),
            labels={},
            max_concurrent=64,
            lease_ttl_s=TTL_S,
            program_env={},
        )
        node = Node(config, self.company, ports, runner=lambda seat: _Noting(self.began))
        await node.open()
        await node.start()
        member = self.members[node_id] = Member(node, connection, signals)
        return member

    def held(self, node_id: str) -> Sequence[str]:
        """The seats of a node, in order."""
        return sorted(self.members[node_id].node.host.held())

    async def begin_of(self, message_id: str, within_s: float = 60.0) -> float:
        """When the first turn on a message began."""
        await until(lambda: message_id in self.began, within_s)
        return self.began[message_id]

    async def close(self) -> None:
        for member in self.members.values():
            await member.leave()


class _Noting:
    kind = "noting"

    def __init__(self, began: dict[str, float]) -> None:
        self._began = began

    async def run(self, turn: Turn) -> TurnResult:
        now = time.perf_counter()
        for event in turn.mail:
            self._began.setdefault(event.id, now)
        return TurnResult("delivered")


def company_of(count: int) -> Company:
    return Company("bench", tuple(Seat(f"seat-{number:04}") for number in range(count)))


async def until(is_so: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait for a condition, which is looked at every few milliseconds."""
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(0.002)
