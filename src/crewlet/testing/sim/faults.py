"""What goes wrong in a simulation, and when. Each kind is switched on or off by name."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.fleetview import HEARD_WITHIN_S
from crewlet.testing.sim.machine import Machine
from crewlet.testing.sim.mail import STREAM
from crewlet.testing.sim.pausejudge import PAUSES
from crewlet.testing.sim.stage import Stage
from crewlet.testing.sim.wire import DELAY_S

KINDS = (
    "latency",
    "loss",
    "late",
    "partition",
    "pause",
    "crash",
    "stop",
    "deploy",
    "election",
    "outage",
    "stall",
    "hooks",
    "turns",
    "company",
    "pausing",
    "early",
    "unread",
)
"""latency: slow crossings. loss: requests and answers vanish. late: requests straggle and are overtaken. partition:
nothing crosses, one way or both. pause: a process freezes, also for longer than a lease. crash: a process dies and
comes back. stop: one drains and comes back. deploy: each drains and comes back at a newer lease protocol. election: a
stream has no leader. outage: the broker is gone. stall: the broker stands still, then takes what piled up. hooks:
attaching and detaching are slow and fail. turns: turns break, panic and reach outside. company: seats come, go and are
placed elsewhere, and each node hears of it in its own time. pausing: people pause seats and resume them. early: a node
whose line is slow is asked to drain just as it claims a seat. unread: seats are paused, and handed over while nobody
can read the pauses."""


BY_NAME = ("limp", "limbo")
"""Those that no seed switches on by itself. limp: one stream stands still, and the others go on. limbo: a seat leaves,
and comes back while the broker does not answer the deletes of its mailbox, which land before that lease lapses."""

_ORDERLY = frozenset({"crash", "stop", "deploy", "company", "pausing", "limbo"})


class Faults:
    """Makes trouble until told to stop, then undoes all of it.

    Args:
        kinds: which.
        mean_s: the usual time between two troubles.
    """

    def __init__(self, stage: Stage, machines: Sequence[Machine], kinds: Sequence[str], *, mean_s: float) -> None:
        self._stage = stage
        self._machines = machines
        self._mean_s = mean_s
        self._dice = Dice(stage.seed, "faults")
        self._running: list[asyncio.Task[None]] = []
        self._is_deploying = False
        self._is_in_limbo = False
        makers: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "latency": self._latency,
            "loss": self._loss,
            "late": self._late,
            "partition": self._partition,
            "pause": self._pause,
            "crash": self._crash,
            "stop": self._stop,
            "deploy": self._deploy,
            "election": self._election,
            "outage": self._outage,
            "stall": self._stall,
            "hooks": self._hooks,
            "turns": self._turns,
            "company": self._company,
            "pausing": self._pausing,
            "early": self._early,
            "unread": self._unread,
            "limp": self._limp,
            "limbo": self._limbo,
        }
        self._makers = [(kind, makers[kind]) for kind in (*KINDS, *BY_NAME) if kind in kinds]

    async def run(self) -> None:
        """For ever."""
        while self._makers:
            await asyncio.sleep(self._dice.wait(self._mean_s))
            kind, make = self._dice.pick(self._makers)
            self._stage.history.note("fault", kind)
            self._running.append(asyncio.get_running_loop().create_task(self._guard(kind, make()), name=kind))
            self._running = [task for task in self._running if not task.done()]

    async def heal(self) -> None:
        """End everything that is going wrong; machines that are down come back."""
        for task in self._running:
            task.cancel()
            await asyncio.wait([task])
        self._stage.history.note("heal")
        self._stage.broker.heal()
        if self._stage.roll.left:
            self._stage.roll.settle(self._dice)
            self._stage.judge.fleet.changed(self._stage.roll.company, asyncio.get_running_loop().time())
        newest = max(machine.protocol for machine in self._machines)
        for machine in self._machines:
            machine.heal()
            if machine.life is not None and (machine.life.protocol < newest or machine.life.stopping.is_set()):
                machine.crash()
            machine.protocol = newest
            if not machine.is_up:
                machine.boot()
            machine.adopt()
        await self._stage.people.resume_all()

    async def _guard(self, kind: str, trouble: Coroutine[Any, Any, None]) -> None:
        if kind in _ORDERLY:
            await trouble
            return
        with self._stage.calm.broken():
            await trouble

    def _ttls(self, most: float) -> float:
        """A time on the scale of leases: mostly short, sometimes longer than one."""
        return self._stage.ttl_s * most * self._dice.random() ** 3

    # The network

    async def _latency(self) -> None:
        machine = self._dice.pick(self._machines)
        machine.line.jitter_s = self._dice.between(0.05, 3.0)
        await asyncio.sleep(self._dice.between(5.0, 60.0))
        machine.line.jitter_s = 0.0

    async def _loss(self) -> None:
        machine = self._dice.pick(self._machines)
        machine.line.lost_out = self._dice.pick((0.0, 0.1, 0.3))
        machine.line.lost_back = self._dice.pick((0.1, 0.3, 0.6))
        await asyncio.sleep(self._dice.between(5.0, 60.0))
        machine.line.lost_out = machine.line.lost_back = 0.0

    async def _late(self) -> None:
        machine = self._dice.pick(self._machines)
        machine.line.late, machine.line.late_s = self._dice.pick((0.1, 0.4)), self._dice.pick((1.0, 5.0, 20.0))
        await asyncio.sleep(self._dice.between(5.0, 60.0))
        machine.line.late = 0.0

    async def _partition(self) -> None:
        line, which = self._dice.pick(self._machines).line, self._dice.below(3)
        line.cut_out, line.cut_back = which != 0, which != 1
        await asyncio.sleep(0.5 + self._ttls(2.5))
        line.cut_out = line.cut_back = False

    # The processes

    async def _pause(self) -> None:
        machine = self._dice.pick(self._machines)
        life = machine.life
        if life is None or not life.process.is_running:
            return
        # Shorter than a heartbeat, longer than one but within the lease, and longer than a lease.
        low, high = self._dice.pick(((0.002, 0.3), (0.3, 1.0), (1.0, 3.0)))
        machine.freeze()
        await asyncio.sleep(self._stage.ttl_s * self._dice.between(low, high))
        if machine.life is life:
            machine.thaw()

    async def _crash(self) -> None:
        machine = self._dice.pick(self._machines)
        machine.crash()
        await self._come_back(machine)

    async def _stop(self) -> None:
        machine = self._dice.pick(self._machines)
        await self._replace(machine, patience_s=self._dice.pick((5.0, 120.0)))
        await self._come_back(machine)

    async def _deploy(self) -> None:
        if self._is_deploying:
            return
        self._is_deploying = True
        try:
            newest = 1 + max(machine.protocol for machine in self._machines)
            for machine in self._machines:
                machine.protocol = newest
                await self._replace(machine, patience_s=30.0)
                await self._come_back(machine)
        finally:
            self._is_deploying = False

    async def _replace(self, machine: Machine, *, patience_s: float) -> None:
        """Have a node drain and end; one that takes too long is killed, as a service manager does it."""
        life = machine.life
        machine.stop()
        until = asyncio.get_running_loop().time() + patience_s
        while machine.life is life and life is not None and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.25)
        if machine.life is life:
            machine.crash()

    async def _come_back(self, machine: Machine) -> None:
        await asyncio.sleep(0.5 + self._ttls(2.0))
        if not machine.is_up:
            machine.boot()

    async def _company(self) -> None:
        now = asyncio.get_running_loop().time()
        self._changed(self._stage.roll.change(self._dice))
        hearing = sorted((HEARD_WITHIN_S * self._dice.random() ** 2, i) for i in range(len(self._machines)))
        for after_s, index in hearing:
            await asyncio.sleep(now + after_s - asyncio.get_running_loop().time())
            self._machines[index].adopt()

    def _changed(self, what: str) -> None:
        """The company has changed; no node has heard of it yet."""
        self._stage.history.note("company", what)
        self._stage.judge.fleet.changed(self._stage.roll.company, asyncio.get_running_loop().time())

    async def _pausing(self) -> None:
        seats = self._stage.roll.company.seats
        handles = sorted({self._dice.pick(seats).handle for _ in range(self._dice.pick((1, 1, 3)))})
        pause = await self._stage.people.pause(handles)
        await asyncio.sleep(self._dice.between(2.0, 60.0))
        await self._stage.people.resume(handles, pause)

    async def _early(self) -> None:
        machine, loop = self._dice.pick(self._machines), asyncio.get_running_loop()
        await self._replace(machine, patience_s=30.0)
        await self._come_back(machine)
        machine.line.delay_s = self._dice.between(0.3, 1.2)
        try:
            until = loop.time() + 40.0
            while loop.time() < until and (life := machine.life) is not None:
                if self._stage.judge.claims_of(life.owner):
                    await asyncio.sleep(machine.line.delay_s * self._dice.random())
                    break
                await asyncio.sleep(0.1)
            await self._replace(machine, patience_s=120.0)
        finally:
            machine.line.delay_s = DELAY_S
        await self._come_back(machine)

    async def _unread(self) -> None:
        stage, machine = self._stage, self._dice.pick(self._machines)
        owner = machine.life.owner if machine.life is not None else ""
        held = sorted(handle for handle, each in stage.judge.holders().items() if each.record.owner == owner)
        if not held:
            return
        # Before anybody notices that the watches are broken, the pause stands and its stream has lost its leader.
        stage.store.buckets[PAUSES].break_watches()
        pause = await stage.people.pause(held)
        lasts_s = self._dice.between(10.0, 40.0)
        stage.broker.elect(PAUSES, asyncio.get_running_loop().time() + lasts_s)
        await self._replace(machine, patience_s=lasts_s)
        await asyncio.sleep(lasts_s / 2)
        await stage.people.resume(held, pause)
        await self._come_back(machine)

    # The broker

    async def _election(self) -> None:
        stage = self._stage
        streams = ("crewlet_leases", "crewlet_epochs", "crewlet_ledger", "mail", "crewlet_pauses")
        stream, lasts_s = self._dice.pick(streams), self._dice.between(1.0, 8.0)
        stage.broker.elect(stream, asyncio.get_running_loop().time() + lasts_s)
        await asyncio.sleep(lasts_s)

    async def _outage(self) -> None:
        stage = self._stage
        stage.broker.is_down = True
        stage.mail.hang_up()
        for bucket in stage.store.buckets.values():
            bucket.break_watches()
        await asyncio.sleep(0.2 + self._ttls(1.5))
        stage.broker.is_down = False

    async def _stall(self) -> None:
        stage = self._stage
        stage.broker.stall()
        await asyncio.sleep(0.2 + self._ttls(1.5))
        stage.store.aged_late()
        stage.broker.resume()

    async def _limp(self) -> None:
        stage = self._stage
        stage.broker.limp(self._dice.pick(("crewlet_leases", "crewlet_leases", "crewlet_epochs", "crewlet_ledger")))
        await asyncio.sleep(0.2 + self._ttls(2.0))
        stage.store.aged_late()
        stage.broker.resume()

    async def _limbo(self) -> None:
        stage, loop = self._stage, asyncio.get_running_loop()
        if self._is_in_limbo or len(stage.roll.company.seats) < 2:
            return
        self._is_in_limbo = True
        try:
            handle = stage.roll.remove(self._dice)
            self._changed(f"-{handle}")
            self._hear()
            claimed_at = await stage.judge.mailboxes.retiring(handle)
            # Longer than a retirement may act, and shorter than the lease that it holds.
            resumes_at = claimed_at + stage.ttl_s * self._dice.between(0.6, 0.95)
            with stage.calm.broken():
                stage.broker.limp(STREAM)
                await asyncio.sleep(stage.ttl_s * self._dice.between(0.1, 0.5))
                if stage.roll.bring_back(handle):
                    self._changed(f"+{handle}")
                    self._hear()
                await asyncio.sleep(resumes_at - loop.time())
                stage.broker.resume()
        finally:
            self._is_in_limbo = False

    def _hear(self) -> None:
        """Every node has the newest document at once."""
        for machine in self._machines:
            machine.adopt()

    # The nodes' own work

    async def _hooks(self) -> None:
        luck = self._dice.pick(self._machines).luck
        luck.hook_s, luck.hook_fails = self._dice.pick((0.0, 3.0, 20.0)), self._dice.pick((0.0, 0.3, 1.0))
        await asyncio.sleep(self._dice.between(10.0, self._dice.pick((90.0, 90.0, 400.0))))
        slow_s, luck.hook_s, luck.hook_fails = luck.hook_s, 0.0, 0.0
        await asyncio.sleep(slow_s)  # what was begun by then may go wrong only now

    async def _turns(self) -> None:
        luck = self._dice.pick(self._machines).luck
        luck.breaks, luck.panics, luck.reaches = 0.2, 0.05, 0.3
        await asyncio.sleep(self._dice.between(10.0, 60.0))
        luck.breaks = luck.panics = luck.reaches = 0.0
