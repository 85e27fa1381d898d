"""What the parts of one seat host share: its settings, its ports, its tenures, and the hooks into the node."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog

from crewlet.kit.latch import Latch
from crewlet.kit.supervise import Tasks
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Misuse
from crewlet.ports.term import Term
from crewlet.seats import admission
from crewlet.seats.allotment import CLAIM_LIMIT_PER_SWEEP, RELEASE_LIMIT_PER_SWEEP, SWEEP_INTERVAL_S
from crewlet.seats.allowance import Allowance
from crewlet.seats.lease import ClaimResult
from crewlet.seats.leases import LeaseStore
from crewlet.seats.tenure import Tenures

T = TypeVar("T")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What one node's seat host is.

    Attributes:
        node_id: stable across restarts; what `preferred` names.
        owner: this incarnation, `{node_id}:{random}`.
        roles: what the node does; it places seats with `seats` among them.
        labels: what placements select on. A mapping that changes shows in the next presence renewal.
        sweep_interval_s: between two passes.
        heartbeat_s: how old the proof of a seat may be for a turn to start; None, or more than a third of the TTL, is a
            third of the TTL.
        claims_per_sweep: seats won a pass, at most.
        releases_per_sweep: excess seats given back a pass, at most.
        handoff_wait_s: how long a voluntary release waits for the running handler; a drain waits without a bound.
    """

    node_id: str
    owner: str
    roles: frozenset[str]
    labels: Mapping[str, str]
    sweep_interval_s: float = SWEEP_INTERVAL_S
    heartbeat_s: float | None = None
    claims_per_sweep: int = CLAIM_LIMIT_PER_SWEEP
    releases_per_sweep: int = RELEASE_LIMIT_PER_SWEEP
    handoff_wait_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.node_id.strip() or not self.owner.strip():
            raise Misuse("a seat host needs a node id and an owner")
        if self.sweep_interval_s <= 0 or (self.heartbeat_s is not None and self.heartbeat_s <= 0):
            raise Misuse("the sweep interval and the heartbeat are more than 0 s")
        if self.claims_per_sweep < 1 or self.releases_per_sweep < 1 or self.handoff_wait_s < 0:
            raise Misuse("a pass claims and releases 1 seat or more, and a handoff waits 0 s or more")


class SeatHooks(Protocol):
    """What the node does when a seat comes, stays or goes. The plain functions must not block; what they raise is
    logged and harms no other seat."""

    async def on_acquire(self, term: Term, good_until: float) -> None:
        """Establish the seat and attach its inbox last, good until this reading of `Clock.elapsed` (a renewal that was
        answered meanwhile is told by `on_renewed` afterwards).

        Raises:
            Exception: it could not be; `on_release` is called next with `acquire_failed`.

        Cancellation: the lease is lost, or the host stops; `on_release` is called next.
        """
        ...

    async def on_release(self, term: Term, *, reason: str, is_voluntary: bool) -> None:
        """Take the seat down. When it returns, nothing of the tenure can act or be handed mail.

        Voluntary: the consumer was told to stop, and no handler runs. Else: detach first, end the turn and programs.
        Called again, with the same arguments, after it has failed.

        Raises:
            Exception: it is not proven; the lease is kept.
        """
        ...

    def on_admission(self, handle: str, admits: bool) -> None:
        """Stop fetching, or go on."""
        ...

    def on_established(self, term: Term) -> None:
        """The acquire hook has returned, and turns may start."""
        ...

    def on_renewed(self, term: Term, good_until: float) -> None:
        """A renewal was answered for a seat that serves or still ends a turn, never for one whose teardown failed."""
        ...

    def is_busy(self, handle: str) -> bool:
        """Whether a handler of the seat's inbox runs."""
        ...

    async def stop_programs(self, term: Term) -> None:
        """The lease is about to lapse: cancel the turn, see its programs end, and refuse deliveries from now on.

        Raises:
            Exception: something may be left; called again until the instant has passed and beyond.
        """
        ...


@dataclass(slots=True, eq=False)
class HostContext:
    """The state that sweep, heartbeat, handoff and drain work on.

    Attributes:
        resting: seats this node leaves alone until that reading of `Clock.elapsed`.
        give_backs: terms whose release nobody answered, each with the instant at which its lease has lapsed anyway.
        claims: by handle, the claims that the store has not answered.
        shed_reason: why this node runs no seat for now, or None.
        is_routable: whether the node could route its seats' calls at the last look.
        hurry: a drain waits for no handler any more.
        allowance: for a drain, the time its store calls may take together.
        ttl_s: of the seats' leases.
        window_s: how old the last proof of ownership may be for a turn to start.
        period_s: the time between the starts of two renewals.
    """

    config: HostConfig
    leases: LeaseStore
    hooks: SeatHooks
    clock: Clock
    entropy: Entropy
    tenures: Tenures
    can_lapse: bool
    tasks: Tasks = field(default_factory=lambda: Tasks("seats"))
    locks: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])
    resting: dict[str, float] = field(default_factory=dict[str, float])
    give_backs: dict[str, tuple[Term, float]] = field(default_factory=dict[str, tuple[Term, float]])
    claims: dict[str, "asyncio.Future[ClaimResult | None]"] = field(
        default_factory=dict[str, "asyncio.Future[ClaimResult | None]"]
    )
    is_draining: bool = False
    is_routable: bool = True
    shed_reason: str | None = None
    hurry: Latch[str] = field(default_factory=Latch[str])
    allowance: Allowance | None = None
    ttl_s: float = field(init=False)
    window_s: float = field(init=False)
    period_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.ttl_s = self.leases.ttl_s
        self.window_s = admission.heartbeat_window_s(self.ttl_s, self.config.heartbeat_s)
        self.period_s = admission.loop_period_s(self.window_s)

    @property
    def may_take(self) -> bool:
        """Whether a claim may be made, or kept, at this moment."""
        return not self.is_draining and self.shed_reason is None

    def lock(self, handle: str) -> asyncio.Lock:
        """The lock that everything which changes the seat's tenure is under."""
        return self.locks.setdefault(handle, asyncio.Lock())

    def forget_seats(self, handles: set[str]) -> None:
        """Drop what is kept of seats that are not among these and not in any use."""
        for handle in [h for h in self.locks if h not in handles]:
            if not self.locks[handle].locked() and self.tenures.get(handle) is None and handle not in self.give_backs:
                del self.locks[handle]
                self.resting.pop(handle, None)

    async def ask(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Ask the store; during a drain within its allowance.

        Raises:
            Unavailable: nobody answered, in time.
        """
        if self.allowance is None:
            return await work
        return await self.allowance.spend(work, name)

    def tell(self, what: str, notice: Callable[[], object]) -> None:
        """Tell the node something. What that raises harms nobody else."""
        try:
            notice()
        except Exception:  # noqa: BLE001 -- the node's code, and every other seat depends on this loop
            _log.exception("seat_callback_broke", callback=what)

    def is_busy(self, handle: str) -> bool:
        """Whether a handler runs; not known is taken as no, as nothing may wait for ever on it."""
        try:
            return self.hooks.is_busy(handle)
        except Exception:  # noqa: BLE001 -- as above
            _log.exception("seat_callback_broke", callback="is_busy", seat=handle)
            return False
