"""One simulated machine: its clock, its line to the broker, and the incarnations of its node."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from crewlet.company.model import Seat
from crewlet.node.assembly import Node
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec
from crewlet.seats.lease import LEASE_PROTOCOL
from crewlet.testing.sim.cells import SimCellStore
from crewlet.testing.sim.children import WRITE, SimToolServers
from crewlet.testing.sim.clock import SimClock
from crewlet.testing.sim.dice import Dice, SimEntropy
from crewlet.testing.sim.loop import Process
from crewlet.testing.sim.mail import SimMailWire
from crewlet.testing.sim.parents import Guard, SimDeadline, timer_s
from crewlet.testing.sim.ports import bring_up, hang_up, ports_over
from crewlet.testing.sim.stage import Stage
from crewlet.testing.sim.turnwatch import TURN, Luck, WatchedMail, WatchedTurns
from crewlet.testing.sim.vacancy import Living
from crewlet.testing.sim.wire import Line, Wire
from crewlet.turns.turn import Runner

MAINTENANCE_S = 20.0
_RESTART_S = 1.0


class NoPrograms(Programs):
    """A simulated company has script seats only."""

    async def spawn(self, spec: ProgramSpec) -> Program:
        raise ProgramNotStarted(f"a simulation starts no programs: {spec.argv}")


class Incarnation:
    """One life of a node."""

    def __init__(self, machine: "Machine", number: int, protocol: int) -> None:
        stage = machine.stage
        self.dice = Dice(stage.seed, f"{machine.node_id} life {number}")
        self._tool_dice = Dice(stage.seed, f"{machine.node_id} tools {number}")
        self._entropy = SimEntropy(Dice(stage.seed, f"{machine.node_id} ids {number}"))
        self.owner = f"{machine.node_id}:{self._entropy.token(4)}"
        self.process = Process(self.owner)
        self.protocol = protocol
        self.stopping = asyncio.Event()
        self.has_started = False
        self._machine = machine
        self._adopting: asyncio.Task[None] | None = None
        overdue = machine.overdue if machine.guard is Guard.PARENT else None
        self.deadline = SimDeadline(machine.clock, stage.world, overdue)
        stage.judge.lives.begun(self.process, self.deadline, machine.guard, machine.slots)
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
                removed_seat_grace_s=stage.grace_s,
                maintenance_every_s=MAINTENANCE_S,
            ),
            stage.roll.company,
            self._ports(),
            runner=self._runner,
        )
        stage.judge.claims.begun(self.owner, machine.labels, self.node.company())

    def begin(self) -> asyncio.Task[None]:
        return self._run(self._live(), self.owner)

    def adopt(self) -> None:
        """The node hears that the company has changed."""
        self._adopting = self._run(self._adopt(), f"{self.owner} adopts")

    def look(self) -> None:
        """See whether its watchdog would bark."""
        if self.has_started and not self.stopping.is_set() and self.process.is_running:
            self._machine.stage.judge.lives.lags(self.process, self.node.beats.worst())

    def living(self) -> Living | None:
        """What there is to say of the node, if it runs, has started and is not leaving."""
        if not self.has_started or self.stopping.is_set() or not self.process.is_running:
            return None
        machine = self._machine
        is_level = self.node.company() is machine.stage.roll.company
        return Living(machine.node_id, self.owner, self.protocol, machine.labels, is_level)

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

    def heard(self, bucket: str, revision: int) -> None:
        self._machine.stage.judge.heard(self.process, bucket, revision)

    def started(self, handle: str) -> None:
        self._machine.stage.judge.effects.started(self.process, handle)

    def ended(self, handle: str) -> None:
        self._machine.stage.judge.effects.ended(self.process, handle)

    def called(self, handle: str, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        judge, turn = self._machine.stage.judge, TURN.get()
        if turn is None or turn.handle != handle:
            judge.fail("P8", f"{self.process.name} called a tool of {handle} in no turn of it")
            return
        turn.is_exempt = turn.is_exempt or tool.endswith(WRITE)
        judge.act(turn, "called a tool")
        judge.effects.called(turn, tool, arguments, meta)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._machine.stage.loop.create_task(work, name=name, context=self.wire.own.copy())

    async def _adopt(self) -> None:
        company = self._machine.stage.roll.company
        if self.has_started and self.node.company() is not company:
            await self.node.adopt(company)
            self._machine.stage.judge.claims.adopted(self.owner, self.node.company())

    def _leaving(self) -> None:
        turn = TURN.get()
        if turn is not None:
            self._machine.stage.judge.act(turn, "sent mail")

    async def _live(self) -> None:
        """What the process does from its start to its end."""
        node = self.node
        await bring_up(node, self._machine.clock)
        self.has_started = True
        await self._adopt()
        await self.stopping.wait()
        self._machine.stage.judge.claims.drains(self.owner)
        await node.drain()
        await node.close()
        self._machine.ended(self)

    def _ports(self) -> Ports:
        machine, stage = self._machine, self._machine.stage
        return ports_over(
            self.wire,
            SimCellStore(stage.store, self.wire, self._entropy.token, self),
            lambda: WatchedMail(
                stage.mail,
                clock=machine.clock,
                wire=SimMailWire(self.wire, self.dice, self._leaving, machine.trouble),
            ),
            stage.signals,
            clock=machine.clock,
            entropy=self._entropy,
            programs=NoPrograms(),
            deadline=self.deadline,
            tool_servers=SimToolServers(self, lambda: machine.luck.hook_fails, self._tool_dice, machine.clock),
        )

    def _runner(self, seat: Seat) -> Runner:
        del seat
        machine = self._machine
        return WatchedTurns(self.process, machine.stage.judge, machine.luck, machine.dice, machine.clock)


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
        self.guard = Dice(stage.seed, f"{node_id} guard").pick((Guard.NONE, Guard.NONE, Guard.TIMER, Guard.PARENT))
        self.protocol = LEASE_PROTOCOL
        self.life: Incarnation | None = None
        self._lives: list[object] = []
        self._frozen_at = 0.0

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
            self._frozen_at = self.stage.loop.time()
            self.stage.loop.freeze(self.life.process)

    def thaw(self) -> None:
        if self.life is not None and not self.life.process.is_running:
            self.stage.history.note("thaw", self.life.owner)
            is_dead = self.guard is not Guard.NONE and self.stage.loop.time() - self._frozen_at > timer_s(
                self.stage.ttl_s
            )
            if is_dead:
                self._killed(self.life)
            else:
                self.stage.loop.thaw(self.life.process, timers_first=self.dice.chance(0.5))

    def overdue(self) -> None:
        """The instant has passed that the node has told its parent."""
        if self.life is not None:
            self.stage.judge.lives.ended(self.life.process)
            self._killed(self.life)

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

    def _killed(self, life: Incarnation) -> None:
        """It has stopped turning, and is no more; whoever looks after it starts another."""
        self.stage.history.note("killed", life.owner)
        self._gone(life)
        self.stage.loop.call_later(_RESTART_S, self._restart, context=self.stage.world)

    def _restart(self) -> None:
        if not self.is_up:
            self.boot()

    def _gone(self, life: Incarnation) -> None:
        life.deadline.forget()
        self.stage.loop.kill(life.process)
        self.stage.judge.died(life.process)
        hang_up(life.wire, self.stage.store, self.stage.signals)
        if self.life is life:
            self.life = None
