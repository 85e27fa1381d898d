"""One simulation from its first instant to its verdict."""

import asyncio
import gc
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from crewlet.company.model import Seat
from crewlet.duties.scheduling import EVERY_S
from crewlet.duties.scheduling import TTL_S as DUTY_TTL_S
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.ports.mail import NoMailbox, Subscription
from crewlet.testing.sim.cells import SimStore
from crewlet.testing.sim.company import Roll, company_of, is_slow, labels_of
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.facts import Violation
from crewlet.testing.sim.faults import KINDS, Faults
from crewlet.testing.sim.history import Event, History
from crewlet.testing.sim.judge import Judge
from crewlet.testing.sim.loop import SimLoop
from crewlet.testing.sim.machine import Machine
from crewlet.testing.sim.mail import SimMailBroker
from crewlet.testing.sim.people import People
from crewlet.testing.sim.signals import SignalHub
from crewlet.testing.sim.stage import Calm, Stage
from crewlet.testing.sim.turnwatch import PLANTED
from crewlet.testing.sim.vacancy import Vacancies
from crewlet.testing.sim.wire import Broker
from crewlet.testing.virtual import Stuck

CRASH, LIVENESS, SAFETY = 127, 128, 129

_WARM_UP_S = 30.0
_DRIFT = 0.002

_TOLD = 400
"""So many of the newest events are reported with a finding."""

# What no fault may bring about: each of these is a defect of our own code.
_DEFECTS = frozenset(
    {
        "task_broke",
        "task_ended_early",
        "heartbeat_broke",
        "seat_sweep_broke",
        "seat_callback_broke",
        "seat_check_broke",
        "seat_list_unreadable",
        "mail_pass_broke",
        "background_work_broke",
        "handler_failed",
        "dispatch_panicked",
        "turn_phase_panicked",
        "turn_note_failed",
    }
)


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What to simulate.

    Attributes:
        seed: decides everything that is left to chance.
        nodes, seats: 1 or more of each; at most 100 seats.
        minutes: simulated minutes of trouble; healing comes on top.
        faults: which kinds, of `KINDS` and `BY_NAME`; None lets the seed switch some off.
        mails_per_minute: how many come from outside.
    """

    seed: int
    nodes: int = 3
    seats: int = 6
    minutes: float = 10.0
    faults: tuple[str, ...] | None = None
    mails_per_minute: float = 40.0


@dataclass(frozen=True, slots=True)
class SimReport:
    """What came of a simulation.

    Attributes:
        code: 0, or the exit code of the first thing found.
        finding: one line, or "".
        hash: of the whole history.
        kinds: the faults that were on.
        counts: how often what happened.
        tail: the newest events before a finding.
    """

    options: SimOptions
    code: int
    finding: str
    hash: str
    kinds: tuple[str, ...]
    simulated_s: float
    counts: dict[str, int]
    tail: tuple[Event, ...] = field(default=(), repr=False)
    cpu_s: float = field(default=0.0, compare=False)


class _Found(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def simulate(options: SimOptions) -> SimReport:
    """Run one simulation. Leaves nothing behind; not for use inside a running loop."""
    began = time.process_time()
    with _quiet() as defects, _no_collections():
        report = _simulate(options, defects)
    return replace(report, cpu_s=time.process_time() - began)


def _simulate(options: SimOptions, defects: list[str]) -> SimReport:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    world = _World(options, loop, defects)
    try:
        code, finding = world.run()
    finally:
        loop.abandon()
        asyncio.set_event_loop(None)
        loop.close()
    counts = {**world.history.counts, **world.judge.counts, "callbacks": loop.callbacks}
    return SimReport(
        options,
        code,
        finding,
        world.history.hash,
        world.kinds,
        loop.time(),
        dict(sorted(counts.items())),
        world.history.newest(_TOLD) if code else (),
    )


class _World:
    def __init__(self, options: SimOptions, loop: SimLoop, defects: list[str]) -> None:
        self._options = options
        self._loop = loop
        self._defects = defects
        self._dice = Dice(options.seed, "world")
        self._ttl_s = self._dice.pick((15.0, 45.0))
        # As in earnest far above what a presence may be behind.
        self._grace_s = 1.5 * self._ttl_s + Dice(options.seed, "grace").pick((40.0, 40.0, 200.0))
        company = company_of(options.seed, options.nodes, options.seats, ttl_s=self._ttl_s)
        self._roll = Roll(company, options.nodes)
        self.kinds = self._switched_on()
        self.history = History(kept=_TOLD)
        self._violation: asyncio.Future[Violation] | None = None
        self._calm = Calm()
        silence_s = Dice(options.seed, "silence").pick((1.0, 1.0, 5.0, 15.0))
        self._broker = Broker(self.history, silence_s=silence_s)
        self.judge = Judge(
            company,
            loop,
            self.history,
            self._broker,
            ttl_s=self._ttl_s,
            grace_s=self._grace_s,
            drift=_DRIFT,
            on_violation=self._violated,
        )
        self._vacancies = Vacancies(self.judge.fail)

    def run(self) -> tuple[int, str]:
        self._loop.set_exception_handler(self._broke)
        try:
            self._loop.run_until_complete(self._main())
        except _Found as found:
            return found.code, str(found)
        except Stuck as stuck:
            return CRASH, str(stuck)
        return 0, ""

    async def _main(self) -> None:
        self._violation = self._loop.create_future()
        stage = self._stage()
        self._calm = stage.calm
        machines = [Machine(stage, f"n{index}", labels_of(index), drift=_DRIFT) for index in range(self._options.nodes)]
        scenario = self._loop.create_task(self._scenario(stage, machines), name="scenario")
        try:
            await asyncio.wait([scenario, self._violation], return_when=asyncio.FIRST_COMPLETED)
        finally:
            scenario.cancel()
        if self._violation.done():
            found = self._violation.result()
            raise _Found(SAFETY, f"{found.promise} broken at {found.at:.3f} s: {found.text}")
        if self._defects:
            raise _Found(CRASH, self._defects[0])
        scenario.result()

    def _stage(self) -> Stage:
        dice = Dice(self._options.seed, "store")
        mail = SimMailBroker(
            self._loop,
            self._broker,
            self.judge.mails,
            ack_window_s=self._ttl_s,
            pull_expiry_s=self._dice.pick((1.5, 15.0, 15.0)),
        )
        self.judge.mail = mail
        store, world = SimStore(self._broker, dice, self.judge), copy_context()
        return Stage(
            self._loop,
            self._options.seed,
            self._roll,
            self.history,
            self.judge,
            self._broker,
            store,
            mail,
            SignalHub(
                Dice(self._options.seed, "signals"),
                loses=Dice(self._options.seed, "signal loss").pick((0.0, 0.0, 0.2, 1.0)),
            ),
            People(self._options.seed, store, self._broker, world),
            Calm(),
            world,
            self._ttl_s,
            self._grace_s,
        )

    async def _scenario(self, stage: Stage, machines: Sequence[Machine]) -> None:
        for machine in machines:
            await asyncio.sleep(self._dice.random())
            machine.boot()
        await asyncio.sleep(_WARM_UP_S)
        faults = Faults(stage, machines, self.kinds, mean_s=15.0)
        feeding = self._loop.create_task(self._feed(stage), name="feed")
        troubling = self._loop.create_task(faults.run(), name="faults")
        until = self._loop.time() + 60.0 * self._options.minutes
        while self._loop.time() < until:
            await self._second(machines)
        for task in (troubling, feeding):
            task.cancel()
            await asyncio.wait([task])
        await faults.heal()
        await self._all_held(machines)
        await self._all_done(stage, machines)
        await self._all_fired(machines)

    async def _feed(self, stage: Stage) -> None:
        """Mail from outside, some of it twice."""
        dice = Dice(self._options.seed, "feed")
        number, handles = 0, list[str]()
        seats: Sequence[Seat] = ()
        while True:
            await asyncio.sleep(dice.wait(60.0 / self._options.mails_per_minute))
            number += 1
            if self._roll.company.seats is not seats:
                seats = self._roll.company.seats
                handles = [seat.handle for seat in seats for _ in range(1 if is_slow(seat) else 10)]
            handle, message_id = dice.pick(handles), f"m{number:06d}"
            envelope = Envelope(
                id=message_id,
                type="external_notification",
                timestamp=stage.store.now().isoformat(),
                source="person",
                to=handle,
                body="work",
                conversation=f"c{dice.below(3)}" if dice.chance(0.5) else "",
            )
            self.judge.mails.fed.add(message_id)
            if not (self._broker.is_down or self._broker.is_stalled):
                with suppress(NoMailbox):  # of a seat that is so new that no node has heard of it
                    stage.mail.publish(
                        topics.inbox(handle).topic, msgspec.json.encode(envelope), message_id=message_id, headers={}
                    )

    async def _all_held(self, machines: Sequence[Machine]) -> None:
        """P6: with nothing going wrong, every seat finds a holder, and one that left the company has none."""
        seats = len(self._roll.company.seats)
        within_s = 3.0 * self._ttl_s + 5.0 * (4 + seats / 4)
        until = self._loop.time() + within_s
        while missing := self._unheld(machines):
            if self._loop.time() > until:
                raise _Found(
                    LIVENESS, f"P6: {missing[0]} is held by no live node {within_s:.0f} s after the last fault"
                )
            await self._second(machines)
        while strays := [handle for handle in self._roll.left if handle in self.judge.holders()]:
            if self._loop.time() > until:
                raise _Found(LIVENESS, f"P6: {strays[0]} has left the company and is held {within_s:.0f} s after that")
            await self._second(machines)

    async def _all_done(self, stage: Stage, machines: Sequence[Machine]) -> None:
        """P4 and P6: every inbox empties, and what was accepted is accounted for."""
        patience_s = 6.0 * self._ttl_s + 120.0
        lying: dict[Subscription, float] = {}  # since when, for a schedule may fire as late as this
        kept = {topics.inbox(handle) for handle in self._roll.left}
        # What comes much later is not waited for: a schedule may bring a slow seat mail as fast as it works it off.
        before = stage.mail.clock.now() + timedelta(seconds=2.0 * patience_s)
        while left := {inbox: count for inbox, count in stage.mail.unsettled(before).items() if inbox not in kept}:
            now = self._loop.time()
            lying = {subscription: lying.get(subscription, now) for subscription in left}
            for subscription, count in left.items():
                idle_s = now - max(lying[subscription], self.judge.mails.settled_at.get(subscription.topic, 0.0))
                if idle_s > patience_s:
                    raise _Found(
                        LIVENESS, f"P6: {count} mails lie in {subscription.topic}, none settled for {idle_s:.0f} s"
                    )
            await self._second(machines)
        if gone := self.judge.mails.unaccounted(stage.mail):
            raise _Found(SAFETY, f"P4: {gone[0]} was accepted and is gone, with {len(gone) - 1} more")

    async def _all_fired(self, machines: Sequence[Machine]) -> None:
        """P4 and P6: of every instant at which a schedule was due something is known for good, and soon."""
        until, within_s = self._loop.time() + 3.0 * self._ttl_s, 2 * DUTY_TTL_S + 2 * EVERY_S
        while left := self.judge.fires.unsettled(self._roll.company.schedules, self._loop.time(), within_s=within_s):
            if self._loop.time() > until:
                raise _Found(LIVENESS, f"P6: {left}, {within_s:.0f} s after it was due")
            await self._second(machines)

    async def _second(self, machines: Sequence[Machine]) -> None:
        await asyncio.sleep(1.0)
        lives = [machine.life for machine in machines if machine.life is not None]
        for life in lives:
            life.look()
        self.judge.look({life.owner: life.process.thawed_at for life in lives if life.process.is_running})
        if self._calm.lasts(2 * self._ttl_s):
            living = [each for life in lives if (each := life.living()) is not None]
            self._vacancies.look(self._loop.time(), self.judge.scene(living), self._roll.company.seats)
        else:
            self._vacancies.stir(self._loop.time())
        if self._defects:
            raise _Found(CRASH, self._defects[0])

    def _unheld(self, machines: Sequence[Machine]) -> list[str]:
        owners = {machine.life.owner for machine in machines if machine.life is not None}
        holders = self.judge.holders()
        return [
            seat.handle
            for seat in self._roll.company.seats
            if seat.handle not in holders or holders[seat.handle].record.owner not in owners
        ]

    def _switched_on(self) -> tuple[str, ...]:
        if self._options.faults is not None:
            return self._options.faults
        dice = Dice(self._options.seed, "swarm")
        return tuple(kind for kind in KINDS if dice.chance(0.6))

    def _violated(self, violation: Violation) -> None:
        if self._violation is not None and not self._violation.done():
            self._violation.set_result(violation)

    def _broke(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._defects.append(f"{context.get('message')}: {context.get('exception')!r}")


@contextmanager
def _quiet() -> Generator[list[str]]:
    """No logs; what they say of our own defects is gathered."""
    defects: list[str] = []
    before = structlog.get_config()

    def gather(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if event["event"] in _DEFECTS and PLANTED not in str(event.get("error")):
            defects.append(f"{event['event']}: { {key: str(value) for key, value in event.items()} }")
        raise structlog.DropEvent

    nowhere = structlog.ReturnLogger()
    structlog.configure(
        processors=[structlog.processors.ExceptionRenderer(), gather],
        logger_factory=lambda *_: nowhere,
        wrapper_class=structlog.make_filtering_bound_logger(40),
        cache_logger_on_first_use=False,
    )
    try:
        yield defects
    finally:
        structlog.configure(**before)


@contextmanager
def _no_collections() -> Generator[None]:
    """The collector runs clean-up code at moments that differ from run to run; reference counts do not.

    What was there before is set aside, so that the collection at the end looks through the simulation's objects alone.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_on:
            gc.enable()
