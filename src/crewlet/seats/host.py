"""The seat host: decides which seats this process runs, proves it, and hands them back.

The parts are `sweep` (what to take and give), `handoff` (taking and giving one seat), `heartbeat` (keeping it),
`admission` and `fence` (what a turn may rely on), `lapse` (ending in time) and `drain` (leaving).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from crewlet.company.model import Seat
from crewlet.kit.beats import Beats
from crewlet.kit.supervise import see_through
from crewlet.ports.clock import Clock
from crewlet.ports.deadline import Deadline
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Unavailable
from crewlet.ports.term import Term
from crewlet.seats import admission
from crewlet.seats.context import HostConfig as HostConfig
from crewlet.seats.context import HostContext
from crewlet.seats.context import SeatHooks as SeatHooks
from crewlet.seats.drain import Drain
from crewlet.seats.fence import SeatFence
from crewlet.seats.handoff import Handoff
from crewlet.seats.heartbeat import Heartbeat
from crewlet.seats.lease import Lease
from crewlet.seats.leases import LeaseStore
from crewlet.seats.news import Freed as Freed
from crewlet.seats.noderow import NodeRow
from crewlet.seats.pace import SweepPace
from crewlet.seats.presence import Presence, StatusSource
from crewlet.seats.sweep import Sweep
from crewlet.seats.sweep import SweepRecord as SweepRecord
from crewlet.seats.tenure import Phase, Tenures

_log = structlog.get_logger()


def _yes() -> bool:
    return True


def _nothing() -> None:
    return None


def _note_nobody(presences: Sequence[Lease]) -> None:
    del presences


def _tell_nobody(_: Freed) -> None:
    return None


class SeatHost:
    """One node's half of placement. `start`, then `drain` or `stop`; both end it for good.

    Args:
        leases: the store of leases; its TTL is the TTL in force.
        seats: the company's seats in force.
        hooks: what the node does when a seat comes, stays or goes.
        deadline: where the parent process reads until when this one may live.
        leases_can_lapse: False under `coordination.type: local`: no deadline, and no fence closes by its clock.
        may_claim: False, or raises, while what the node knows is behind or not known to be level, its copy of the
            records or what the store shows of leases: it keeps its seats and claims none.
        can_route: False while the node cannot serve its seats' calls at all: it gives every seat back. One that
            raises changes nothing.
        beats: where the loops say that they turn, for a watchdog; None where nobody watches.
        on_beat: called as the heartbeat turns.
        status: facts for the presence row, read at each heartbeat (see `Presence`).
        on_roster: called with the live nodes' presences at each pass that could read them.
        on_freed: called with the news of seats just given back, for a broadcast; peers pass it to `hear_freed`.
    """

    def __init__(
        self,
        config: HostConfig,
        leases: LeaseStore,
        seats: Callable[[], Sequence[Seat]],
        hooks: SeatHooks,
        *,
        clock: Clock,
        entropy: Entropy,
        deadline: Deadline,
        leases_can_lapse: bool = True,
        may_claim: Callable[[], bool] = _yes,
        can_route: Callable[[], bool] = _yes,
        beats: Beats | None = None,
        on_beat: Callable[[], None] = _nothing,
        on_freed: Callable[[Freed], None] = _tell_nobody,
        on_roster: Callable[[Sequence[Lease]], None] = _note_nobody,
        status: StatusSource | None = None,
    ) -> None:
        beats = beats or Beats(clock.elapsed, math.inf)
        tenures = Tenures(clock, deadline, can_lapse=leases_can_lapse)
        self._context = HostContext(config, leases, hooks, clock, entropy, tenures, leases_can_lapse)
        self._presence = Presence(self._context, self._me, status)
        self._handoff = Handoff(self._context, self._presence, self._note_loss, on_freed)
        self._sweep = Sweep(
            self._context,
            self._handoff,
            self._presence,
            seats=seats,
            may_claim=may_claim,
            can_route=can_route,
            on_roster=on_roster,
            beat=beats.of("sweep"),
        )
        self._heartbeat = Heartbeat(self._context, self._handoff, self._presence, beats, on_beat)
        self._drain = Drain(self._context, self._handoff, self._presence)
        self._pace = SweepPace(clock, config.sweep_interval_s)
        self._is_started = False
        self._draining: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Announce this node, take the first seats, and go on by itself. Again: nothing happens.

        Never raises for the store: what cannot be had now is tried again at each heartbeat and pass.
        """
        if self._is_started or self._context.is_draining:
            return
        self._is_started = True
        await self._presence.renew()
        self._context.tasks.start_eternal(self._heartbeat.run(), "heartbeat")
        self._pace.begin_pass()
        await self._pass()
        self._context.tasks.start_eternal(self._passes(), "sweep")

    async def drain(self) -> None:
        """Give everything back: presence, then each seat as its running handler ends, with no bound of its own.

        Cancellation: no handler is waited for any more; seats and presence are given back before it is raised.
        """
        self._drain.begin()
        if self._draining is None:
            self._draining = self._context.tasks.start(self._drain.run(), "drain")
        await see_through(self._draining, lambda: self._drain.hurry("drain"))

    def hurry(self, reason: str) -> None:
        """Drain without waiting: for no handler, and for no answer of the store, which is gone for good."""
        self._drain.begin()
        self._drain.hurry(reason)
        self._drain.forget_store()

    async def stop(self) -> None:
        """Give back what is still here without waiting for handlers, and end every task. Again: nothing happens.

        Cancellation: finished first, then raised.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="seats: stop")
        await see_through(self._stopping)

    async def _stop(self) -> None:
        self._drain.begin()
        self._drain.hurry("stop")
        if self._is_started:
            if self._draining is None:
                self._draining = self._context.tasks.start(self._drain.run(), "drain")
            await asyncio.wait([self._draining])
        await self._context.tasks.stop()

    # Passes

    def request_sweep(self) -> None:
        """Ask for a pass before the next tick, because the seats themselves changed. One an interval comes early."""
        self._pace.request()

    def hear_freed(self, freed: Freed) -> None:
        """A peer says that it gave seats back. Those that this node has room for are tried within milliseconds.

        News of this incarnation's own is left out.
        """
        if self._is_started and self._context.may_take and freed.owner != self._context.config.owner:
            self._sweep.hear_freed(freed)

    async def _passes(self) -> None:
        while True:
            await self._pass(is_early=await self._pace.next_pass())

    async def _pass(self, *, is_early: bool = False) -> None:
        try:
            await self._sweep.sweep(is_early=is_early)
        except Exception:  # noqa: BLE001 -- the next pass begins from what is true then
            _log.exception("seat_sweep_broke")

    # What a turn asks

    def may_start(self, handle: str) -> int | None:
        """The epoch under which a turn may start now, or None: not held, not established, or not freshly proven."""
        context, tenure = self._context, self._context.tenures.get(handle)
        if tenure is None or tenure.phase is not Phase.HELD or not context.may_take or tenure.is_lapsing:
            return None
        if tenure.fence.is_closed:
            return None
        now = context.clock.elapsed()
        if admission.is_fresh(now, tenure.proven_at, context.window_s):
            return tenure.term.epoch
        if not tenure.is_stale_told:
            tenure.is_stale_told = True
            age_s = round(now - tenure.proven_at, 3)
            _log.warning("seat_admission_stale", seat=handle, epoch=tenure.term.epoch, age_s=age_s)
        return None

    def note_deferral(self, handle: str) -> None:
        """A delivery of the seat was deferred: its consumer is to go on at the next good renewal."""
        if (tenure := self._context.tenures.get(handle)) is not None:
            tenure.admission.note_deferral()

    def reopen(self, handle: str) -> None:
        """What a deferral of the seat waited for has come: its consumer goes on now, where a turn may start now."""
        context, tenure = self._context, self._context.tenures.get(handle)
        if tenure is None or self.may_start(handle) is None:
            return
        if tenure.admission.reopen(is_busy=context.is_busy(handle)):
            context.tell("on_admission", lambda: context.hooks.on_admission(handle, True))

    def fence(self, handle: str) -> SeatFence | None:
        """The fence of the seat's present tenure; None when it has none here."""
        tenure = self._context.tenures.get(handle)
        return tenure.fence if tenure is not None else None

    def term(self, handle: str) -> Term | None:
        """The tenure under which writes for the seat may be made now, fresh or not; None when it is not ours."""
        tenure = self._context.tenures.get(handle)
        return tenure.term if tenure is not None and tenure.has_lease and not tenure.fence.is_closed else None

    # What the node does with a seat

    async def give_back(self, handle: str, reason: str) -> bool:
        """Give one seat back voluntarily, for instance as `unprepared`. False: not proven, or not held."""
        tenure = self._context.tenures.get(handle)
        if tenure is None:
            return False
        wait_s = self._context.config.handoff_wait_s
        return await self._handoff.release(tenure, reason, is_voluntary=True, wait_s=wait_s)

    async def with_seat(self, handle: str, work: Callable[[Term], Awaitable[None]]) -> bool:
        """Run work on a held seat so that neither an acquisition nor a release crosses it. False: not held, not run."""
        async with self._context.lock(handle):
            tenure = self._context.tenures.get(handle)
            if tenure is None or tenure.phase is not Phase.HELD or not tenure.has_lease:
                return False
            await work(tenure.term)
            return True

    @property
    def has_ended_all(self) -> bool:
        """Whether nothing that worked for a seat here is left, as far as is proven."""
        return all(tenure.is_stopped for tenure in self._context.tenures.all())

    async def shed(self, reason: str) -> None:
        """Run nothing for now (`shed` or `stuck`): presence goes, every seat goes at once, no claim is made."""
        context = self._context
        context.shed_reason = reason
        for tenure in context.tenures.all():
            if tenure.phase in (Phase.HELD, Phase.LEAVING):
                tenure.fence.close(reason)  # no turn goes on while the store is asked
        try:
            await self._presence.give_up()
        except Unavailable as error:
            _log.warning("node_presence_not_released", node=context.config.node_id, error=str(error))
        await asyncio.gather(
            *(self._handoff.release(tenure, reason, is_voluntary=False) for tenure in context.tenures.all())
        )

    async def resume(self) -> None:
        """Undo `shed`: announce this node again at once, and take seats at the next pass."""
        context = self._context
        if context.shed_reason is None or context.is_draining:
            return
        context.shed_reason = None
        self._presence.restore()
        await self._presence.renew()
        self.request_sweep()

    # What others see

    def held(self) -> Mapping[str, Term]:
        """Seats that run here, or end a last turn on their way out, by handle; none whose teardown failed."""
        return {tenure.handle: tenure.term for tenure in self._context.tenures.held()}

    def unproven_seconds(self) -> Mapping[str, float]:
        """For how long the teardown of each seat has been failing whose lease is kept for it."""
        return self._context.tenures.unproven_seconds()

    @property
    def last_sweep(self) -> SweepRecord | None:
        """The newest pass, with what was lost since; None before the first."""
        return self._sweep.last

    @property
    def live_nodes(self) -> int | None:
        """Live nodes by the last roster that could be read, this one included; None before the first."""
        return self._sweep.live_nodes

    @property
    def is_draining(self) -> bool:
        return self._context.is_draining

    def presence_held(self) -> bool:
        """Whether peers provably count this node."""
        return self._presence.is_held

    def presence_trouble(self) -> str | None:
        """Why the last renewal of it was not answered; None where it was."""
        return self._presence.trouble

    def id_rival(self) -> str | None:
        """The process that keeps this one out of the fleet under the same node id, or a former run of it."""
        return self._presence.rival

    # The sweep is made last, of parts that ask it these.

    def _me(self) -> NodeRow:
        return self._sweep.me()

    def _note_loss(self, handle: str, reason: str) -> None:
        self._sweep.note_loss(handle, reason)
