"""One company in memory: its broker, its store, and the nodes that run it, each with its lives."""

import asyncio
from collections.abc import Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from crewlet.company.model import ANYWHERE, CommandRunner, Company, LlmRunner, PythonRunner, Seat
from crewlet.node.assembly import Node
from crewlet.node.bundle import NodeConfig
from crewlet.testing.inmemory.broker import CompanyMailBroker
from crewlet.testing.inmemory.loop import CompanyLoop
from crewlet.testing.inmemory.plans import PlannedStanding, PlannedTurns, Plans
from crewlet.testing.inmemory.programs import InMemoryPrograms
from crewlet.testing.inmemory.records import Records, ToldHistory
from crewlet.testing.inmemory.tools import StandIns
from crewlet.testing.sim.cells import SimCellStore, SimStore, Unwatched
from crewlet.testing.sim.clock import SimClock
from crewlet.testing.sim.dice import Dice, SimEntropy
from crewlet.testing.sim.history import History
from crewlet.testing.sim.loop import Process
from crewlet.testing.sim.mail import SimMailWire
from crewlet.testing.sim.ports import bring_up, hang_up, ports_over
from crewlet.testing.sim.signals import SignalHub
from crewlet.testing.sim.wire import Broker, Line, Wire
from crewlet.testing.twins.mail import TwinMail
from crewlet.turns.runners import runner_for
from crewlet.turns.runners.llm import LlmTurns
from crewlet.turns.turn import Runner, StandingRunner

LEASE_TTL_S = 45.0
RESTART_S = 1.0
"""How long after its death a node is back, as its parent process brings it back."""

_CLOCK_OFFSET_S = 1000.0
_SEED = 0


@dataclass
class Equipment:
    """What a test has put in place before the company began.

    Attributes:
        base_env: what every program gets of its node's environment.
        company_dir: the folder of the company document.
        variables: the nodes' own variables, to which the document may refer.
        scripts: how the models of `llm` seats answer.
        patches: what takes the place of what in the modules of `python` seats.
    """

    base_env: Mapping[str, str]
    company_dir: str | None
    variables: dict[str, str] = field(default_factory=dict[str, str])
    scripts: dict[str, Any] = field(default_factory=dict[str, Any])
    patches: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    stand_ins: StandIns = field(default_factory=StandIns)


class World:
    """Everything that outlives a node."""

    def __init__(self, loop: CompanyLoop, company: Company, equipment: Equipment, *, lease_ttl_s: float) -> None:
        self.loop = loop
        self.company = company
        self.equipment = equipment
        self.lease_ttl_s = lease_ttl_s
        self.records = Records()
        self.plans = Plans()
        self.broker = Broker(History(kept=100))
        self.store = SimStore(self.broker, Dice(_SEED, "store"), self.records, lateness_s=0.0)
        self.mail = CompanyMailBroker(loop, self.broker, self.records, ack_window_s=lease_ttl_s)
        self.signals = SignalHub(Dice(_SEED, "signals"), loses=0.0)
        self.context = copy_context()
        self.machines: dict[str, Machine] = {}
        self.coming = 0
        """How much that was planted is under way: restarts and thaws."""
        self._work: set[asyncio.Task[None]] = set()

    def machine(self, name: str) -> "Machine":
        """The machine of that name, which is up."""
        if name not in self.machines:
            self.machines[name] = Machine(self, name)
        machine = self.machines[name]
        if machine.life is None:
            machine.boot()
        return machine

    def living(self) -> "list[Life]":
        """The lives of nodes that have started and do not leave."""
        lives = [machine.life for machine in self.machines.values()]
        return [life for life in lives if life is not None and life.is_serving]

    def holder(self, seat: str) -> "Life | None":
        """The life that a seat is held by, if it is one that goes on."""
        owner, _ = self.records.holders.get(seat, ("", 0))
        return next((life for life in self.living() if life.owner == owner), None)

    def at_once(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that belongs to no node, and count it as under way."""
        self.coming += 1

        async def whole() -> None:
            try:
                await work
            finally:
                self.coming -= 1

        task = self.loop.create_task(whole(), name="planted", context=self.context.copy())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def unwind(self) -> None:
        """Leave nothing of the user's behind."""
        for machine in self.machines.values():
            for life in machine.lives:
                life.programs.kill()
                life.programs.unwind()


class Machine:
    """A machine whose node always comes back under the same id."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimClock(world.loop, rate=1.0, offset_s=_CLOCK_OFFSET_S)
        self.line = Line()
        self.life: Life | None = None
        self.lives: list[Life] = []

    def boot(self) -> None:
        """Start a node; there is none."""
        self.life = Life(self, len(self.lives) + 1)
        self.lives.append(self.life)
        self.life.begin()

    def crash(self, why: str, *, restarts: bool) -> None:
        """The node is gone from one step to the next, with all that it started."""
        life, world = self.life, self.world
        if life is None:
            return
        world.records.note_all([seat.handle for seat in world.company.seats], self.name, f"the node dies: {why}")
        world.loop.kill(life.process)
        life.programs.kill()
        hang_up(life.wire, world.store, world.signals)
        self.life = None
        if restarts:
            world.at_once(self._come_back())

    async def stop(self) -> None:
        """Have the node finish its turns, give everything back and end."""
        life = self.life
        if life is not None:
            life.stopping.set()
            await asyncio.wait([life.whole])
            life.whole.result()
            self.life = None

    async def _come_back(self) -> None:
        await asyncio.sleep(RESTART_S)
        if self.life is None:
            self.boot()


class Life:
    """One life of a node."""

    whole: asyncio.Task[None]

    def __init__(self, machine: Machine, number: int) -> None:
        world, equipment = machine.world, machine.world.equipment
        self.machine = machine
        self.owner = f"{machine.name}:{number}"
        self.process = Process(self.owner)
        self.stopping = asyncio.Event()
        self._has_started = False
        dice = Dice(_SEED, f"{self.owner} wire")
        self._entropy = SimEntropy(Dice(_SEED, f"{self.owner} ids"))
        self.wire = Wire(self.process, machine.line, world.broker, dice, world.context)
        self.programs = InMemoryPrograms(world.loop, machine.clock, equipment.patches)
        calm = SimMailWire(self.wire, dice, _nothing, lambda: (0.0, 0.0))
        ports = ports_over(
            self.wire,
            SimCellStore(world.store, self.wire, self._entropy.token, Unwatched()),
            lambda: TwinMail(world.mail, clock=machine.clock, wire=calm),
            world.signals,
            clock=machine.clock,
            entropy=self._entropy,
            programs=self.programs,
            history=ToldHistory(world.records, machine.name),
            tool_servers=equipment.stand_ins,
        )
        config = NodeConfig(
            node_id=machine.name,
            owner=self.owner,
            roles=frozenset({"seats", "ingress", "workers", "data"}),
            labels={},
            max_concurrent=32,
            lease_ttl_s=world.lease_ttl_s,
            program_env=equipment.base_env,
            company_dir=equipment.company_dir,
            variable=equipment.variables.get,
        )
        self.node = Node(config, world.company, ports, runner=self._runner)

    @property
    def is_serving(self) -> bool:
        """Whether it has started, runs, and does not leave."""
        return self._has_started and self.process.is_running and not self.stopping.is_set()

    def begin(self) -> None:
        """Start the process."""
        self.whole = self.machine.world.loop.create_task(self._live(), name=self.owner, context=self.wire.own.copy())

    async def _live(self) -> None:
        node = self.node
        await bring_up(node, self.machine.clock)
        self._has_started = True
        await self.stopping.wait()
        await node.drain()
        await node.close()
        hang_up(self.wire, self.machine.world.store, self.machine.world.signals)

    def _runner(self, seat: Seat) -> Runner:
        world, clock = self.machine.world, self.machine.clock
        equipment = world.equipment
        if isinstance(seat.runner, LlmRunner):
            return self._scripted(seat)
        inner = runner_for(
            seat,
            programs=self.programs,
            clock=clock,
            entropy=self._entropy,
            base_env=equipment.base_env,
            default_cwd=equipment.company_dir,
            variable=equipment.variables.get,
        )
        if isinstance(inner, StandingRunner):
            return PlannedStanding(inner, world.plans, self)
        return PlannedTurns(inner, world.plans, self, counts_rounds=True)

    def _scripted(self, seat: Seat) -> Runner:
        world, clock = self.machine.world, self.machine.clock

        def models(runner: LlmRunner) -> list[Any]:
            del runner
            from crewlet.testing.inmemory.models import WatchedModel, model_of

            script = world.equipment.scripts[seat.handle]
            model = model_of(script, seat.handle, clock)
            return [WatchedModel(model, lambda: planned.answering(seat.handle))]

        inner = LlmTurns(
            seat, clock=clock, entropy=self._entropy, variable=world.equipment.variables.get, models=models
        )
        planned = PlannedTurns(inner, world.plans, self, counts_rounds=False)
        return planned


def ready(company: Company, env: Mapping[str, Mapping[str, str]]) -> Company:
    """The company as its nodes here run it: any of them may hold any seat.

    Args:
        env: variables by seat, before those of the document.
    """
    return replace(company, seats=tuple(_ready(seat, env.get(seat.handle, {})) for seat in company.seats))


def _ready(seat: Seat, env: Mapping[str, str]) -> Seat:
    match seat.runner:
        case LlmRunner() as runner:
            # Scripted models answer whole.
            runner = replace(runner, is_streamed=False)
        case CommandRunner() | PythonRunner() as runner:
            runner = replace(runner, env={**runner.env, **env})
        case runner:
            pass
    return replace(seat, runner=runner, placement=ANYWHERE)


def _nothing() -> None:
    return
