"""One simulated machine: its clock, its line to the broker, and the incarnations of its node."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crewlet.company.model import Seat
from crewlet.node.assembly import Node, NodeConfig, Ports
from crewlet.ports.deadline import NoDeadline
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Mail
from crewlet.ports.programs import Program, ProgramNotStarted, ProgramSpec
from crewlet.seats.lease import LEASE_PROTOCOL
from crewlet.testing.sim.cells import SimCellStore, SimStore
from crewlet.testing.sim.company import Roll
from crewlet.testing.sim.dice import Dice, SimEntropy
from crewlet.testing.sim.history import History
from crewlet.testing.sim.judge import Judge, RunningTurn
from crewlet.testing.sim.loop import Process, SimLoop
from crewlet.testing.sim.mail import SimMailBroker, SimMailWire
from crewlet.testing.sim.signals import SignalHub, SimSignals
from crewlet.testing.sim.wire import Broker, Line, Wire
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.virtual import EPOCH
from crewlet.turns.runners.script import ScriptTurns
from crewlet.turns.turn import Runner, Turn, TurnBroke, TurnResult

_TURN: ContextVar[RunningTurn | None] = ContextVar("simulated turn", default=None)

PLANTED = "a planted panic"
ROUND_S = 0.7


class SimClock:
    """The clock of one machine: it runs a little wrong, and goes on while the node is frozen."""

    def __init__(self, loop: SimLoop, *, rate: float, offset_s: float) -> None:
        self._loop = loop
        self._rate = rate
        self._offset_s = offset_s

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.elapsed())

    def elapsed(self) -> float:
        return self._offset_s + self._rate * self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._rate)


class _Rounds:
    """A clock for a turn's sleeps that wakes in rounds, each of which asks the fence, as a runner with tools does."""

    def __init__(self, clock: SimClock, turn: Turn, act: Callable[[], None]) -> None:
        self._clock = clock
        self._turn = turn
        self._act = act

    def now(self) -> datetime:
        return self._clock.now()

    def elapsed(self) -> float:
        return self._clock.elapsed()

    async def sleep(self, seconds: float) -> None:
        left_s = seconds
        while left_s > 0:
            await self._clock.sleep(min(left_s, ROUND_S))
            left_s -= ROUND_S
            self._turn.fence.check()
            self._act()


class NoPrograms:
    """A simulated company has script seats only."""

    async def spawn(self, spec: ProgramSpec) -> Program:
        raise ProgramNotStarted(f"a simulation starts no programs: {spec.argv}")


@dataclass(frozen=True, slots=True)
class Stage:
    """What all machines of a simulation share."""

    loop: SimLoop
    seed: int
    roll: Roll
    history: History
    judge: Judge
    broker: Broker
    store: SimStore
    mail: SimMailBroker
    signals: SignalHub
    calm: "Calm"
    world: Context
    ttl_s: float


class Calm:
    """For how long nothing has been going wrong."""

    def __init__(self) -> None:
        self._active = 0
        self._since = 0.0

    @contextmanager
    def broken(self) -> Generator[None]:
        """Something goes wrong in here."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._since = asyncio.get_running_loop().time()

    def lasts(self, seconds: float) -> bool:
        return self._active == 0 and asyncio.get_running_loop().time() - self._since > seconds


@dataclass(slots=True)
class Luck:
    """How the turns and the hooks of a machine go wrong at present, each a share from 0 to 1.

    Attributes:
        breaks, panics: of turns.
        reaches: of turns that have an effect outside.
        hook_s: how long attaching and detaching take, at most.
        hook_fails: how often they fail.
    """

    breaks: float = 0.0
    panics: float = 0.0
    reaches: float = 0.0
    hook_s: float = 0.0
    hook_fails: float = 0.0

    def heal(self) -> None:
        self.breaks = self.panics = self.reaches = self.hook_s = self.hook_fails = 0.0


class WatchedTurns:
    """A runner that tells the judge what its turns really do."""

    kind = "script"

    def __init__(self, machine: "Machine", process: Process) -> None:
        self._machine = machine
        self._process = process

    async def run(self, turn: Turn) -> TurnResult:
        judge, luck, dice = self._machine.stage.judge, self._machine.luck, self._machine.dice
        running = judge.begin(self._process, turn)
        _TURN.set(running)
        how = "cancelled"
        try:
            if dice.chance(luck.breaks):
                raise TurnBroke("a planted failure")
            if dice.chance(luck.reaches):
                turn.fence.check()
                turn.reach("a call that leaves the system")
                running.is_exempt = True
                judge.act(running, "reached outside")
            rounds = _Rounds(self._machine.clock, turn, lambda: judge.act(running, "took a step"))
            result = await ScriptTurns(clock=rounds).run(turn)
            if dice.chance(luck.breaks):
                raise TurnBroke("a planted failure at the end")
            if dice.chance(luck.panics):
                running.is_exempt = True
                raise RuntimeError(PLANTED)
            how = result.outcome
            return result
        except Fenced:
            how = "fenced"
            raise
        except TurnBroke:
            how = "broke"
            raise
        except RuntimeError:
            how = "panicked"
            raise
        finally:
            judge.end(running, how)


class Incarnation:
    """One life of a node."""

    def __init__(self, machine: "Machine", number: int, protocol: int) -> None:
        stage = machine.stage
        self.dice = Dice(stage.seed, f"{machine.node_id} life {number}")
        self._entropy = SimEntropy(Dice(stage.seed, f"{machine.node_id} ids {number}"))
        self.owner = f"{machine.node_id}:{self._entropy.token(4)}"
        self.process = Process(self.owner)
        self.protocol = protocol
        self.stopping = asyncio.Event()
        self.has_started = False
        self._machine = machine
        self._mails: list[TwinMail] = []
        self._adopting: asyncio.Task[None] | None = None
        self.wire = Wire(self.process, machine.line, stage.broker, self.dice, stage.world)
        self.node = Node(
            NodeConfig(
                node_id=machine.node_id,
                owner=self.owner,
                roles=frozenset({"seats", "ingress", "workers", "data"}),
                labels=machine.labels,
                max_concurrent=machine.slots,
                lease_ttl_s=stage.ttl_s,
                program_env={},
                handoff_wait_s=machine.handoff_wait_s,
                lease_protocol=protocol,
            ),
            stage.roll.company,
            self._ports(),
            runner=self._runner,
        )

    def begin(self) -> asyncio.Task[None]:
        return self._run(self._live(), self.owner)

    def adopt(self) -> None:
        """The node hears that the company has changed."""
        self._adopting = self._run(self._adopt(), f"{self.owner} adopts")

    # What a node's adapters would see

    def reading(self, bucket: str, key: str) -> None:
        self._machine.stage.judge.reading(self.process, bucket, key)

    def writing(self, bucket: str, key: str, value: bytes | None) -> None:
        self._machine.stage.judge.writing(self.process, bucket, key, value)

    def unread(self, bucket: str, key: str) -> None:
        self._machine.stage.judge.unread(self.process, bucket, key)

    def listed(self, bucket: str, prefix: str, looked_at: float) -> None:
        self._machine.stage.judge.listed(self.process, bucket, prefix, looked_at)

    def unwritten(self, bucket: str, key: str) -> None:
        self._machine.stage.judge.unwritten(self.process, bucket, key)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._machine.stage.loop.create_task(work, name=name, context=self.wire.own.copy())

    async def _adopt(self) -> None:
        company = self._machine.stage.roll.company
        if self.has_started and self.node.company() is not company:
            await self.node.adopt(company)

    def _leaving(self) -> None:
        turn = _TURN.get()
        if turn is not None:
            self._machine.stage.judge.act(turn, "sent mail")

    async def _live(self) -> None:
        """What the process does from its start to its end."""
        node, clock = self.node, self._machine.clock
        while True:
            try:
                await node.open()
                break
            except Unavailable:
                await clock.sleep(1.0)
        await node.start()
        self.has_started = True
        await self._adopt()
        await self.stopping.wait()
        await node.drain()
        await node.close()
        self._machine.ended(self)

    def _ports(self) -> Ports:
        machine, stage = self._machine, self._machine.stage
        cells = SimCellStore(stage.store, self.wire, self._entropy.token, self)

        async def open_mail(ack_window_s: float) -> Mail:
            wire = SimMailWire(self.wire, self.dice, self._leaving, machine.trouble)
            mail = TwinMail(stage.mail, clock=machine.clock, wire=wire)
            await mail.start()
            self._mails.append(mail)
            return mail

        async def close_mail() -> None:
            for mail in self._mails:
                await mail.stop()

        return Ports(
            lease_cells=cells,
            cells=cells,
            open_mail=open_mail,
            close_mail=close_mail,
            is_linked=lambda: True,
            programs=NoPrograms(),
            signals=SimSignals(stage.signals, self.wire, self.wire.own),
            clock=machine.clock,
            entropy=self._entropy,
            deadline=NoDeadline(),
            leases_can_lapse=True,
        )

    def _runner(self, seat: Seat) -> Runner:
        del seat
        return WatchedTurns(self._machine, self.process)


class Machine:
    """A machine that always comes back under the same node id."""

    def __init__(self, stage: Stage, node_id: str, labels: dict[str, str], *, drift: float) -> None:
        self.stage = stage
        self.node_id = node_id
        self.labels = labels
        self.dice = Dice(stage.seed, node_id)
        rate = 1.0 + drift * (2.0 * self.dice.random() - 1.0)
        self.clock = SimClock(stage.loop, rate=rate, offset_s=self.dice.between(100.0, 100_000.0))
        self.line = Line()
        self.luck = Luck()
        self.slots = self.dice.pick((2, 8, 32))
        self.handoff_wait_s = self.dice.pick((5.0, 60.0, 600.0))
        self.protocol = LEASE_PROTOCOL
        self.life: Incarnation | None = None
        self._lives: list[object] = []

    @property
    def is_up(self) -> bool:
        return self.life is not None

    def boot(self) -> None:
        """Start a new incarnation; the machine must be down."""
        assert self.life is None
        life = self.life = Incarnation(self, len(self._lives), self.protocol)
        self._lives.append((life, life.begin()))
        self.stage.history.note("boot", life.owner, life.protocol)

    def crash(self) -> None:
        """The process is gone from one step to the next."""
        if (life := self.life) is not None:
            self.stage.history.note("crash", life.owner)
            self._gone(life)

    def freeze(self) -> None:
        if self.life is not None:
            self.stage.history.note("freeze", self.life.owner)
            self.stage.loop.freeze(self.life.process)

    def thaw(self) -> None:
        if self.life is not None and not self.life.process.is_running:
            self.stage.history.note("thaw", self.life.owner)
            self.stage.loop.thaw(self.life.process, timers_first=self.dice.chance(0.5))

    def stop(self) -> None:
        """Ask the node to drain and end."""
        if self.life is not None:
            self.stage.history.note("stop", self.life.owner)
            self.life.stopping.set()

    def adopt(self) -> None:
        """Tell the node of a change of the company."""
        if self.life is not None:
            self.life.adopt()

    def ended(self, life: Incarnation) -> None:
        """The process has come to its end by itself."""
        self.stage.history.note("exit", life.owner)
        self.stage.judge.left(life.owner, is_calm=self.stage.calm.lasts(self.stage.ttl_s))
        self._gone(life)

    def trouble(self) -> tuple[float, float]:
        return self.luck.hook_s, self.luck.hook_fails

    def heal(self) -> None:
        self.line.heal()
        self.luck.heal()
        self.thaw()

    def _gone(self, life: Incarnation) -> None:
        self.stage.loop.kill(life.process)
        self.stage.judge.died(life.process)
        self.stage.signals.forget(life.wire)
        for bucket in self.stage.store.buckets.values():
            bucket.forget(life.wire)
        if self.life is life:
            self.life = None
