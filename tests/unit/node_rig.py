"""Whole nodes over twins in virtual time: one store, one broker, as many nodes as a test wants."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.local.signals import LocalSignals
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import Company, Seat, ToolProgram, ToolSite
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.node.assembly import Node
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.ports.cells import BucketSpec, Cells, CellStore, Unknown, WriteResult
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Mail
from crewlet.ports.programs import Program, Programs, ProgramSpec
from crewlet.ports.stores import Stores
from crewlet.ports.tools import ToolServers
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock
from crewlet.turns.turn import Runner, Turn, TurnBroke, TurnResult

TTL_S = 30.0


class CutCells:
    """A bucket whose writes to some keys can be cut off, as by a network that fails one way."""

    def __init__(self, cells: Cells, is_cut: Callable[[str], bool]) -> None:
        self._cells = cells
        self._is_cut = is_cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def replace(self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None) -> WriteResult:
        if self._is_cut(key):
            return Unknown("cut off")
        return await self._cells.replace(key, value, expect=expect, ttl_s=ttl_s)

    async def read(self, key: str) -> Any:
        if self._is_cut(key):
            raise Unavailable("cut off")
        return await self._cells.read(key)


class CutStore:
    def __init__(self, store: CellStore, is_cut: Callable[[str], bool]) -> None:
        self._store = store
        self._is_cut = is_cut

    async def open(self, spec: BucketSpec) -> Cells:
        cells = await self._store.open(spec)
        return cast(Cells, CutCells(cells, self._is_cut)) if spec.name == "crewlet_leases" else cells


class NoPrograms(Programs):
    async def spawn(self, spec: ProgramSpec) -> Program:
        raise AssertionError("no seat of these tests has a program")


@dataclass(eq=False)
class Ran:
    """One run of a turn: where, what, and whether it came to its end."""

    node: str
    seat: str
    triggers: tuple[str, ...]
    epoch: int
    began_at: float
    ended_at: float | None = None


@dataclass(eq=False)
class Fleet:
    """Nodes of one company on one store and broker.

    Attributes:
        turn_s: how long each turn takes, in checked steps of 1 s.
        store_of: the store, but for the leases, as a node of that name reaches it; None is the store itself.
        before_start: called between a node's opening and its start.
        tool_servers: makes the tool servers of its seats.
        tools: which tool servers each seat has, by handle.
        variables: the environment of every node.
        find_former: where epochs were counted before.
        stores: what every node is told of the broker's stores.
        entropy: of every node.
    """

    seats: Sequence[str]
    turn_s: float = 0.0
    clock: VirtualClock = field(default_factory=VirtualClock)
    runs: list[Ran] = field(default_factory=list[Ran])
    cut: set[str] = field(default_factory=set[str])
    gone: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])
    break_next: str = ""
    poison: set[str] = field(default_factory=set[str])
    roles: frozenset[str] = frozenset({"seats"})
    removed_seat_grace_s: float = 24 * 3600.0
    store_of: "Callable[[str], CellStore] | None" = None
    before_start: Callable[[], object] = lambda: None
    tool_servers: ToolServers | None = None
    tools: Mapping[str, tuple[ToolProgram | ToolSite, ...]] = field(
        default_factory=dict[str, tuple[ToolProgram | ToolSite, ...]]
    )
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    find_former: Callable[[BucketSpec], Awaitable[Cells | None]] | None = None
    stores: Stores | None = None
    entropy: Entropy = field(default_factory=SystemEntropy)

    def __post_init__(self) -> None:
        self.store = LocalCells(self.clock)
        self.signals = LocalSignals()
        self.broker = TwinBroker(self.clock, ack_window_s=TTL_S)
        self.company = Company(
            "acme", tuple(Seat(handle, tool_servers=self.tools.get(handle, ())) for handle in self.seats)
        )
        self.nodes: dict[str, Node] = {}

    async def node(self, name: str, *, incarnation: int = 1) -> Node:
        """Start a node."""
        mail = TwinMail(self.broker, clock=self.clock, fault=self._fault)

        async def open_mail(ack_window_s: float) -> Mail:
            assert ack_window_s == TTL_S
            await mail.start()
            return mail

        shared = CutStore(self.store, lambda key: name in self.cut)
        config = NodeConfig(
            node_id=name,
            owner=f"{name}:{incarnation}",
            roles=self.roles,
            labels={},
            max_concurrent=32,
            lease_ttl_s=TTL_S,
            program_env={"PATH": "/bin"},
            variable=self.variables.get,
            removed_seat_grace_s=self.removed_seat_grace_s,
        )
        ports = Ports(
            lease_cells=shared,
            cells=self.store_of(name) if self.store_of is not None else self.store,
            open_mail=open_mail,
            close_mail=mail.stop,
            is_linked=lambda: name not in self.cut,
            is_gone=lambda: name in self.gone,
            programs=NoPrograms(),
            signals=self.signals,
            clock=self.clock,
            entropy=self.entropy,
            deadline=NoDeadline(),
            leases_can_lapse=True,
            tool_servers=self.tool_servers,
            find_former=self.find_former,
            stores=self.stores,
        )
        node = Node(config, self.company, ports, runner=lambda seat: self.runner(seat, name))
        self.nodes[name] = node
        await node.open()
        self.before_start()
        await node.start()
        return node

    def refuse(self, *requests: str) -> None:
        """Leave these requests to the broker without an answer, until `allow`."""
        self.refused = set(requests)

    def allow(self) -> None:
        self.refused = set()

    async def _fault(self, request: str) -> None:
        if request in self.refused:
            raise Unavailable(f"{request} is not answered")

    def runner(self, seat: Seat, node: str) -> Runner:
        """What runs the turns of a tenure."""
        del seat
        return _Recorder(self, node)

    async def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        await node.drain()
        await node.close()

    async def close(self) -> None:
        for name in list(self.nodes):
            await self.stop(name)

    async def send(self, seat: str, message_id: str) -> None:
        await next(iter(self.nodes.values())).commands.send_mail(seat, message_id, message_id=message_id)

    async def publish(self, outbox: Outbox, seat: str, message_id: str) -> None:
        """Send as a client that is no node: with a connection of its own."""
        mail = TwinMail(self.broker, clock=self.clock)
        await mail.start()
        stamp = outbox.timestamp()
        event = Envelope(id=message_id, type="external_notification", timestamp=stamp, source="person", to=seat)
        await replace(outbox, mail=mail).post(event)
        await mail.stop()

    def holder(self, seat: str) -> str | None:
        """The one node that admits turns of a seat now."""
        holders = [name for name, node in self.nodes.items() if node.host.may_start(seat) is not None]
        assert len(holders) <= 1, holders
        return holders[0] if holders else None

    async def until(self, holds: Callable[[], object], what: str, bound_s: float = 300.0) -> None:
        give_up_at = self.clock.elapsed() + bound_s
        while not holds():
            assert self.clock.elapsed() < give_up_at, f"not within {bound_s} s: {what}"
            await self.clock.sleep(0.1)

    def finished(self, trigger: str) -> list[Ran]:
        """The runs of a trigger that came to their end."""
        return [run for run in self.runs if trigger in run.triggers and run.ended_at is not None]


class _Recorder:
    """A runner that does nothing but take time and check its fence, and writes down what it did."""

    kind = "recorder"

    def __init__(self, fleet: Fleet, node: str) -> None:
        self._fleet = fleet
        self._node = node

    async def run(self, turn: Turn) -> TurnResult:
        clock = self._fleet.clock
        triggers = tuple(event.id for event in turn.mail)
        run = Ran(self._node, turn.seat.handle, triggers, turn.fence.term.epoch, clock.elapsed())
        self._fleet.runs.append(run)
        if self._fleet.break_next:
            reason, self._fleet.break_next = self._fleet.break_next, ""
            raise TurnBroke(reason)
        for trigger in self._fleet.poison.intersection(triggers):
            raise TurnBroke(f"{trigger} is poison")
        left_s = self._fleet.turn_s
        while left_s > 0:
            turn.fence.check()
            await clock.sleep(min(1.0, left_s))
            left_s -= 1.0
        turn.fence.check()
        run.ended_at = clock.elapsed()
        return TurnResult("delivered")
