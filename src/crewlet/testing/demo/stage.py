"""The play: a fleet comes up, mail flows, four faults strike, everything is worked off, the fleet drains."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import psutil

from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.supervisor.page import boottime
from crewlet.testing.demo import api, faults
from crewlet.testing.demo.documents import Library
from crewlet.testing.demo.evidence import StoreReader, Trails
from crewlet.testing.demo.feeder import Feeder
from crewlet.testing.demo.fleet import DWELL_S, LEASE_TTL_S, DemoFailed, DemoNode, Fleet
from crewlet.testing.demo.judge import Completion, Evidence, Fault
from crewlet.testing.demo.progress import Progress, Scene
from crewlet.testing.demo.trail import runs_of

CURTAIN_S = 145.0
"""From the start: by then the flow is over, whatever is missing. What follows takes less than 35 s."""
COME_UP_S = 70.0
WARM_UP_S = 5.0
RECOVER_S = 50.0
SEEN_S = 6.0
"""Twice the time between two documents for one intake."""
FREEZE_S = LEASE_TTL_S + 2.5
"""By then its parent has ended what stands still, unless that is too busy itself."""
DRAIN_S = 20.0
STORE_S = 8.0
POLL_S = 0.3
WATCH_EVERY_S = 1.0


@dataclass(slots=True)
class Stage:
    """One demonstration. `play` it once; `seed` decides which node meets which fault."""

    fleet: Fleet
    library: Library
    progress: Progress
    seed: int
    began: float = field(default_factory=time.monotonic)
    faults: list[Fault] = field(default_factory=list[Fault])
    complaints: list[str] = field(default_factory=list[str])
    broker_restarts: int = 0
    completions: list[Completion] = field(default_factory=list[Completion])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    _states: dict[str, str] = field(init=False)
    _members: dict[str, psutil.Process] = field(default_factory=dict[str, psutil.Process])
    _view: api.FleetView | None = None
    _trails: Trails = field(init=False)
    _feeder: Feeder = field(init=False)

    def __post_init__(self) -> None:
        self._states = {node.id: "up" for node in self.fleet.nodes}
        self._trails = Trails(self.fleet.evidence)
        intakes = [handle for handle in self.fleet.seats if handle.startswith("intake")]
        self._feeder = Feeder(self.library, intakes, self._urls)

    async def play(self) -> Evidence:
        """Play it to the end, or as far as it gets, and return what it left behind."""
        try:
            async with asyncio.timeout(CURTAIN_S - (time.monotonic() - self.began)), self._watched():
                await self._come_up()
                await self._harm()
                await self._work_off()
        except* (DemoFailed, CrewletError) as failed:
            self.complaints += map(str, _each(failed))
        except* TimeoutError:
            self.complaints.append(f"not all was worked off {CURTAIN_S:g} s after the start")
        await self._ask_store()
        await self._leave()
        return self._evidence()

    async def _come_up(self) -> None:
        self.progress.say(f"three nodes start in {self.fleet.root}")
        self.fleet.start()
        await self._until(lambda view: not view.unheld, "not all seats were held", COME_UP_S)
        self.progress.say(f"all {len(self.fleet.seats)} seats are held")
        for node in self.fleet.nodes:
            self.progress.say(f"watch the fleet at {node.url}/query/fleet")

    async def _harm(self) -> None:
        """Mail flows from here to the end of the last fault's recovery."""
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feeder.run(enough), name="feeder")
            self.progress.say(f"{len(self.library.paths)} documents of {self.library.root} are on their way")
            await self._warm_up()
            killed, frozen, lost = random.Random(self.seed).sample(self.fleet.nodes, k=3)
            async with self._struck(killed.id, "killed"):
                self.progress.say(f"SIGKILL to node {killed.id}")
                self.faults.append(await faults.kill(killed, partial(self._is_at_work, killed.id)))
            async with self._struck(frozen.id, "frozen"), asyncio.TaskGroup() as both:
                self.progress.say(f"SIGSTOP to node {frozen.id} and its programs")
                stopped = await faults.freeze(frozen, partial(self._is_at_work, frozen.id))
                both.create_task(self._restart_broker(killed), name="broker restart")
                self.faults.append(await faults.outlast(stopped, for_s=FREEZE_S, say=self.progress.say))
            async with self._struck(lost.id, "lost"):
                self.progress.say(
                    f"SIGKILL to the parent of node {lost.id}, which takes node and broker member with it"
                )
                at_work, again = partial(self._is_at_work, lost.id), partial(self.fleet.start_one, lost)
                self.faults.append(await faults.kill_parent(lost, at_work, again))
            await self._until(lambda view: not view.unheld, "not all seats were held again", RECOVER_S)
            enough.set()

    async def _restart_broker(self, node: DemoNode) -> None:
        self.progress.say(f"meanwhile SIGTERM to the broker member beside {node.id}")
        fault = await faults.restart_broker(node)
        self.faults.append(fault)
        self.progress.say(f"the broker member is back after {fault.until - fault.at:.1f} s")

    async def _warm_up(self) -> None:
        """Let every seat work at least once, if the documents make it."""
        until = time.monotonic() + WARM_UP_S
        while time.monotonic() < until:
            if all(self._trails.read().get(handle) for handle in self.fleet.seats):
                return
            await asyncio.sleep(POLL_S)

    @contextlib.asynccontextmanager
    async def _struck(self, node_id: str, state: str) -> AsyncGenerator[None]:
        """Leaves when what the node held is in other hands and a new incarnation of it has come up."""
        before = await self._until(lambda view: not view.unheld, "not all seats were held before the fault", RECOVER_S)
        mine = {owner for owner in before.holders.values() if owner and owner.rpartition(":")[0] == node_id}
        self._states[node_id] = state
        yield

        def is_over(view: api.FleetView) -> bool:
            return not view.unheld and node_id in view.nodes and not mine & set(view.holders.values())

        await self._until(is_over, f"node {node_id} or its seats did not come back", RECOVER_S)
        self._states[node_id] = "up"
        self.progress.say(f"all seats are held again, and node {node_id} is back")
        await self._seen_at_work({seat for seat, owner in before.holders.items() if owner in mine}, mine)

    async def _seen_at_work(self, seats: set[str], former: set[str]) -> None:
        """Let the next owners of seats run them before another fault strikes, for as long as mail may take to come."""
        until = time.monotonic() + SEEN_S
        while time.monotonic() < until:
            newest = {seat: lines[-1].owner for seat, lines in self._trails.read().items() if lines and seat in seats}
            if not former & set(newest.values()):
                return
            await asyncio.sleep(POLL_S)

    async def _work_off(self) -> None:
        """Until every message is finished and no inbox keeps any."""
        self.progress.say("no more documents; the seats work off what is there")
        reader = await StoreReader.open(self.fleet.broker_urls, lease_ttl_s=LEASE_TTL_S, timeout_s=STORE_S)
        try:
            while True:
                with contextlib.suppress(Unavailable):
                    finished = {completion.trigger for completion in await reader.completions()}
                    open_sends = self._sent() - finished
                    if not open_sends and not any((await reader.waiting(self.fleet.seats)).values()):
                        return
                await asyncio.sleep(POLL_S)
        finally:
            await reader.close()

    async def _ask_store(self) -> None:
        """The ledger and the streams, from whichever broker member answers."""
        try:
            async with asyncio.timeout(STORE_S):
                reader = await StoreReader.open(self.fleet.broker_urls, lease_ttl_s=LEASE_TTL_S, timeout_s=STORE_S)
                try:
                    self.completions = list(await reader.completions())
                    self.waiting = dict(await reader.waiting(self.fleet.seats))
                finally:
                    await reader.close()
        except (CrewletError, TimeoutError) as error:
            self.complaints.append(f"the store could not be read: {error or 'it did not answer'}")

    async def _leave(self) -> None:
        self.progress.say("the fleet drains")
        self.fleet.remember()
        self.complaints += await self.fleet.drain(DRAIN_S)
        left = self.fleet.left()
        self.complaints += [f"process {process.pid} was left behind by its node" for process in left]

    def _evidence(self) -> Evidence:
        lines = self._trails.read()
        missing = [path for path in sorted(self._feeder.paths) if not (self.fleet.reports / path).is_file()]
        self.complaints += [f"there is no report on {path}" for path in missing]
        return Evidence(
            nodes=len(self.fleet.nodes),
            seats=self.fleet.seats,
            lines=lines,
            sends=self._feeder.sends,
            completions=self.completions,
            waiting=self.waiting,
            faults=self.faults,
            broker_restarts=self.broker_restarts,
            lease_ttl_s=LEASE_TTL_S,
            elapsed_s=round(time.monotonic() - self.began, 1),
            complaints=[*self.complaints, *self._trails.broken],
        )

    def _sent(self) -> set[str]:
        lines = (line for found in self._trails.read().values() for line in found)
        return {send.id for send in self._feeder.sends} | {line.sent_id for line in lines if line.sent_id}

    def _is_at_work(self, node_id: str) -> bool:
        """Whether a seat of that node is well inside a run, by its own evidence."""
        now = boottime()
        for lines in self._trails.read().values():
            newest = lines[-1] if lines else None
            if newest is None or newest.phase == "end" or newest.owner.rpartition(":")[0] != node_id:
                continue
            began = next((line.boottime for line in reversed(lines) if line.phase == "begin"), now)
            if now - newest.boottime < DWELL_S / 2 and 0.1 * DWELL_S < now - began < 0.6 * DWELL_S:
                return True
        return False

    def _urls(self) -> list[str]:
        """Of the nodes that nothing was done to."""
        return [node.url for node in self.fleet.nodes if self._states[node.id] == "up" and node.url is not None]

    async def _until(self, is_so: Callable[[api.FleetView], bool], otherwise: str, bound_s: float) -> api.FleetView:
        """Ask the nodes until one of them shows the fleet as it should be.

        Raises:
            DemoFailed: not within the bound.
        """
        until = time.monotonic() + bound_s
        view: api.FleetView | None = None
        why = "no node answers"
        while time.monotonic() < until:
            for url in self._urls():
                try:
                    self._view = view = await api.fleet(url)
                except (api.NoAnswer, api.Refused) as error:
                    why = str(error)
                    continue
                if is_so(view):
                    return view
            await asyncio.sleep(POLL_S)
        held = f"without an owner: {', '.join(view.unheld) or 'none'}" if view else why
        raise DemoFailed(f"{otherwise} within {bound_s:g} s ({held})")

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncGenerator[None]:
        """Meanwhile a task keeps an eye on the processes and shows the scene."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(), name="watch")
            yield
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            self.fleet.check()
            self.fleet.remember()
            self._note_brokers()
            await self._look()
            self.progress.show(self._scene())

    async def _look(self) -> None:
        for url in self._urls()[:1]:
            with contextlib.suppress(api.NoAnswer, api.Refused):
                self._view = await api.fleet(url)

    def _note_brokers(self) -> None:
        for node in self.fleet.nodes:
            member = node.broker
            if member is not None:
                self.broker_restarts += self._members.setdefault(node.id, member) != member
                self._members[node.id] = member

    def _scene(self) -> Scene:
        view = self._view
        lines = self._trails.read()
        done = {t for found in lines.values() for run in runs_of(found) if run.is_ended for t in run.triggers}
        return Scene(
            urls={node.id: node.url for node in self.fleet.nodes},
            seats={node.id: view.held_by(node.id) for node in self.fleet.nodes} if view else {},
            state=self._states,
            sent=len(self._sent()),
            finished=len(done),
            reports=sum(path.is_file() for path in self.fleet.reports.rglob("[!.]*")),
        )


def _each(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
