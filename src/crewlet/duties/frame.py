"""Singleton duties: each tick is claimed, so that one node of the fleet does it, and nothing has to be handed over.

A tick runs only on a claim that was granted, and ends before that claim lapses. A claim that is refused, fails or is
not answered skips the tick: not knowing who does a duty is no reason to do it. What a duty does is its own module's.

Each duty's loop beats as its tick gets on, so that one which is stuck is seen by whoever watches this process.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

import structlog

from crewlet.kit.beats import Beat, Beats
from crewlet.kit.supervise import Tasks, see_through
from crewlet.ports.clock import Clock
from crewlet.ports.errors import CrewletError, Misuse
from crewlet.seats.dutyleases import LONGEST_S, SHORTEST_S
from crewlet.seats.lease import ClaimRefused, ClaimResult, Lease

LAST_TICK_S = 10.0
"""How long a stop waits for a tick that runs."""

CLAIM_S = 10.0
"""How long a claim is waited for. What it had written by then is taken back in the background."""

_STOPPING = "this node is stopping"


Outcome = Literal["done", "failed", "held", "unclaimed"]

Turned = Callable[[], None]
"""Says that a tick gets on. Between two calls lies no more than one question to the store, with its repeats."""

_log = structlog.get_logger()


def _always() -> bool:
    return True


class UnknownDuty(CrewletError):
    """There is no duty of that name."""


class NotOnDuty(CrewletError):
    """This node does no duties: it lacks the role, or is stopping."""


@dataclass(frozen=True, slots=True)
class Duty:
    """One duty.

    Attributes:
        name: `[a-z-]+`; its lease is `worker:{name}`.
        purpose: what it is for, in one line.
        every_s: from the beginning of one tick to the next.
        ttl_s: how long a claim keeps peers out: three ticks or more, so that one slow claim does not move it.
        work: does one tick, and says as it gets on; returns what it did in one line, "" where there was nothing to do.
            It may be cancelled, and a tick of another node may follow at once.
        is_wanted: whether there is anything to do at all; where not, no tick is claimed.
    """

    name: str
    purpose: str
    every_s: float
    ttl_s: float
    work: Callable[[Turned], Awaitable[str]]
    is_wanted: Callable[[], bool] = _always

    def __post_init__(self) -> None:
        if not 0 < 3 * self.every_s <= self.ttl_s or not SHORTEST_S <= self.ttl_s <= LONGEST_S:
            raise Misuse(f"the duty {self.name} is claimed for {self.ttl_s:g} s and ticks every {self.every_s:g} s")


@dataclass(frozen=True, slots=True)
class Tick:
    """How a tick on this node ended.

    Attributes:
        outcome: `done`; `failed` (it broke, in part or whole); `held` (another node does the duty); `unclaimed` (it is
            not known who does it).
        detail: what was done, what broke, or the owner that does it.
        began_at: wall clock.
    """

    outcome: Outcome
    detail: str
    began_at: datetime


class Claiming(Protocol):
    """Leases of duties; `crewlet.seats.dutyleases.DutyLeases` has the promises."""

    async def claim(self, duty: str, owner: str, *, ttl_s: float) -> ClaimResult: ...

    async def release(self, duty: str, owner: str, epoch: int) -> bool: ...

    async def get(self, duty: str) -> Lease | None: ...

    async def stop(self) -> None: ...


@dataclass(slots=True)
class _Watched:
    duty: Duty
    beat: Beat
    ticking: asyncio.Lock = field(default_factory=asyncio.Lock)
    was_claimed: bool = False
    last: Tick | None = None


class Duties:
    """The duties of this node. `start`, then `stop`, which ends it for good.

    Args:
        leases: None on a node that has no peers: every tick runs.
        owner: this process incarnation.
        may_work: whether this node has the role for duties.
        beats: where the loops say that they turn; None where nobody watches.
    """

    def __init__(
        self,
        duties: Sequence[Duty],
        leases: Claiming | None,
        *,
        owner: str,
        may_work: bool,
        clock: Clock,
        beats: Beats | None = None,
    ) -> None:
        beats = beats or Beats(clock.elapsed, math.inf)
        self._beat_s = beats.beat_s
        self._claim_s = min(CLAIM_S, beats.threshold_s / 2)
        self._watched = {duty.name: _Watched(duty, beats.of(f"{duty.name} duty")) for duty in duties}
        self._leases = leases
        self._owner = owner
        self._may_work = may_work
        self._clock = clock
        self._tasks = Tasks("duties")
        self._is_stopping = False
        self._stopping: asyncio.Task[None] | None = None

    @property
    def all(self) -> Sequence[Duty]:
        return [watched.duty for watched in self._watched.values()]

    @property
    def may_work(self) -> bool:
        return self._may_work

    def last(self, name: str) -> Tick | None:
        """The newest tick of a duty on this node; None before the first."""
        return self._watched[name].last

    def start(self) -> None:
        """Tick every duty from now on, if this node has the role."""
        if self._may_work and not self._is_stopping:
            for watched in self._watched.values():
                self._tasks.start_eternal(self._loop(watched), watched.duty.name)

    async def run(self, name: str, *, wait_s: float) -> Tick | None:
        """Do one tick now, after one that is running.

        Returns:
            How it ended, or None when it has not within so long. It goes on, also when the caller is cancelled.

        Raises:
            UnknownDuty, NotOnDuty.
        """
        watched = self._watched.get(name)
        if watched is None:
            raise UnknownDuty(f"there is no duty {name!r}; the duties are {', '.join(self._watched)}")
        if not self._may_work:
            raise NotOnDuty("this node does no duties: its roles leave out 'workers'")
        if self._is_stopping:
            raise NotOnDuty(_STOPPING)
        tick = self._tasks.start(self._tick(watched), f"{name}: asked for", is_joined=True)
        await asyncio.wait([tick], timeout=wait_s)
        if tick.cancelled():
            raise NotOnDuty(_STOPPING)
        return tick.result() if tick.done() else None

    async def stop(self) -> None:
        """Let the last ticks end, for a bounded time, and give every duty back. Again: nothing happens.

        Cancellation: finished first, then raised.
        """
        if self._stopping is None:
            self._is_stopping = True
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="duties: stop")
        await see_through(self._stopping)

    async def _loop(self, watched: _Watched) -> None:
        try:
            while not self._is_stopping:
                watched.beat.stamp()
                next_at = self._clock.elapsed() + watched.duty.every_s
                if watched.duty.is_wanted():
                    await self._tick(watched)
                await self._rest(watched, next_at)
        except NotOnDuty:
            pass
        finally:
            # What has ended sits on nothing: it is told, and no reason to end the process.
            watched.beat.stop()
            if not self._is_stopping:
                _log.error("duty_ended", duty=watched.duty.name)
        await asyncio.Event().wait()  # `stop` ends this task

    async def _rest(self, watched: _Watched, until: float) -> None:
        """Wait for the next tick, saying all the while that the loop turns."""
        while (left_s := until - self._clock.elapsed()) > 0 and not self._is_stopping:
            watched.beat.stamp()
            await self._clock.sleep(min(left_s, self._beat_s))

    async def _tick(self, watched: _Watched) -> Tick:
        async with watched.ticking:
            if self._is_stopping:
                raise NotOnDuty(_STOPPING)
            began_at = self._clock.now()
            ends_at = self._clock.elapsed() + watched.duty.ttl_s
            refusal = await self._claim(watched, ends_at)
            if refusal is None:
                outcome, detail = await self._work(watched, ends_at - self._clock.elapsed())
            else:
                outcome, detail = refusal
            watched.last = Tick(outcome, detail, began_at)
            return watched.last

    async def _claim(self, watched: _Watched, ends_at: float) -> tuple[Outcome, str] | None:
        """None: this node does it. Else why the tick is skipped."""
        duty = watched.duty
        if self._leases is None:
            return None
        watched.was_claimed = True
        try:
            claim = self._leases.claim(duty.name, self._owner, ttl_s=duty.ttl_s)
            answer = await self._tasks.within(claim, self._claim_s, self._clock.sleep, f"{duty.name}: claim")
        except Exception as error:  # noqa: BLE001 -- whatever is wrong with the claim, it is not a grant
            _log.warning("duty_claim_failed", duty=duty.name, error=str(error) or type(error).__name__)
            return "unclaimed", str(error) or type(error).__name__
        if isinstance(answer, ClaimRefused):
            _log.debug("duty_held_elsewhere", duty=duty.name, holder=answer.holder)
            return "held", answer.holder or "unknown"
        if self._clock.elapsed() >= ends_at:
            problem = "this process stood still until the claim had lapsed"
            _log.warning("duty_claim_failed", duty=duty.name, error=problem)
            return "unclaimed", problem
        return None

    async def _work(self, watched: _Watched, at_most_s: float) -> tuple[Outcome, str]:
        duty = watched.duty

        def turned() -> None:
            if watched.beat.is_live:  # not of a tick that was asked for while the loop does not run
                watched.beat.stamp()

        turned()
        try:
            done = await self._tasks.within(_one(duty, turned), at_most_s, self._clock.sleep, f"{duty.name}: tick")
        except (CrewletError, TimeoutError) as error:
            problem = _STOPPING if self._is_stopping and isinstance(error, TimeoutError) else str(error)
            _log.warning("duty_tick_failed", duty=duty.name, error=problem)
            return "failed", problem
        except Exception as error:  # noqa: BLE001 -- the next tick begins from what is true then
            _log.exception("duty_tick_broke", duty=duty.name)
            return "failed", repr(error)
        _log.debug("duty_ticked", duty=duty.name, did=done)
        return "done", done

    async def _stop(self) -> None:
        try:
            await self._tasks.within(self._last_ticks(), LAST_TICK_S, self._clock.sleep, "last ticks")
        except TimeoutError:
            busy = [name for name, watched in self._watched.items() if watched.ticking.locked()]
            _log.warning("duty_ticks_cut_short", duties=busy)
        await self._tasks.stop()
        for watched in self._watched.values():
            await self._give_back(watched)
        if self._leases is not None:
            await self._leases.stop()

    async def _last_ticks(self) -> None:
        for watched in self._watched.values():
            async with watched.ticking:
                pass

    async def _give_back(self, watched: _Watched) -> None:
        """Give a duty back, if the store says that it is ours; what it does not answer lapses."""
        duty = watched.duty
        if self._leases is None or not watched.was_claimed:
            return
        try:
            lease = await self._leases.get(duty.name)
            if lease is None or lease.owner != self._owner:
                return
            if await self._leases.release(duty.name, self._owner, lease.epoch):
                _log.info("duty_released", duty=duty.name, epoch=lease.epoch)
        except CrewletError as error:
            _log.warning("duty_not_released", duty=duty.name, error=str(error))


async def _one(duty: Duty, turned: Turned) -> str:
    return await duty.work(turned)
