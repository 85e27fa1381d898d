"""The tenures this process has: which phase each is in, and until when this process may live for them."""

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from crewlet.ports.clock import Clock
from crewlet.ports.deadline import Deadline
from crewlet.ports.term import Term
from crewlet.seats.admission import Admission
from crewlet.seats.fence import SeatFence


class Phase(enum.Enum):
    """Where a tenure stands."""

    ACQUIRING = "acquiring"
    """The lease is won, the acquire hook runs. No turn starts."""
    HELD = "held"
    LEAVING = "leaving"
    """Being given back or taken down. No new turn starts; one that runs may still end."""
    UNDEAD = "undead"
    """Its teardown failed. The lease, if it is still ours, is kept and renewed."""


@dataclass(slots=True)
class Leaving:
    """Why and how a tenure ends. A retry of the teardown repeats both."""

    reason: str
    is_voluntary: bool


@dataclass(slots=True, eq=False)
class Tenure:
    """One tenure of one seat by this process.

    Attributes:
        proven_at: when the last answered renewal (at first the claim) was sent, a reading of `Clock.elapsed`.
        has_lease: False once the store said that the lease is another's, or nobody's.
        teardown: the release hook, while it runs.
        is_lapsing: the lapse timer has begun to end the turn and programs; no turn starts any more.
        is_stopped: turn and programs were seen to end and deliveries are refused, so that nothing of it can act.
        is_giving_back: the lease is on its way back; it is not renewed any more.
        undead_since: when the teardown first failed.
    """

    handle: str
    fence: SeatFence
    proven_at: float
    phase: Phase = Phase.ACQUIRING
    has_lease: bool = True
    teardown: "asyncio.Task[None] | None" = None
    is_lapsing: bool = False
    is_stopped: bool = False
    is_giving_back: bool = False
    is_stale_told: bool = False
    admission: Admission = field(default_factory=Admission)
    leaving: Leaving | None = None
    lapse: asyncio.Task[None] | None = None
    undead_since: float = 0.0
    undead_beats: int = 0

    @property
    def term(self) -> Term:
        return self.fence.term

    @property
    def good_until(self) -> float:
        return self.fence.good_until

    @property
    def is_renewable(self) -> bool:
        return self.has_lease and not self.is_giving_back


class Tenures:
    """Every tenure not yet proven to have ended, at most one a seat, and the deadline they give this process."""

    def __init__(self, clock: Clock, deadline: Deadline, *, can_lapse: bool) -> None:
        self._clock = clock
        self._deadline = deadline
        self._can_lapse = can_lapse
        self._by_handle: dict[str, Tenure] = {}

    def get(self, handle: str) -> Tenure | None:
        return self._by_handle.get(handle)

    def all(self) -> Sequence[Tenure]:
        """All of them, as they are now, in the order of their claims."""
        return tuple(self._by_handle.values())

    def is_current(self, tenure: Tenure) -> bool:
        return self._by_handle.get(tenure.handle) is tenure

    def add(self, tenure: Tenure) -> None:
        assert tenure.handle not in self._by_handle, "a seat has one tenure at a time"
        self._by_handle[tenure.handle] = tenure
        self.publish()

    def remove(self, tenure: Tenure) -> None:
        if self.is_current(tenure):
            del self._by_handle[tenure.handle]
        if tenure.lapse is not None:
            tenure.lapse.cancel()
        self.publish()

    def held(self) -> Sequence[Tenure]:
        """Those that serve, or still end a turn on their way out, with a lease that is ours."""
        return tuple(t for t in self._by_handle.values() if t.is_renewable and t.phase in (Phase.HELD, Phase.LEAVING))

    def staying(self) -> list[str]:
        """Seats that this node serves, or is about to, and does not give back."""
        return [t.handle for t in self._by_handle.values() if t.has_lease and t.phase in (Phase.ACQUIRING, Phase.HELD)]

    def running(self) -> list[str]:
        """Seats whose lease is ours and whose teardown has not failed."""
        return [t.handle for t in self._by_handle.values() if t.has_lease and t.phase is not Phase.UNDEAD]

    def stuck(self) -> list[str]:
        """Seats whose teardown has failed and whose lease is still ours."""
        return [t.handle for t in self._by_handle.values() if t.has_lease and t.phase is Phase.UNDEAD]

    def unproven_seconds(self) -> dict[str, float]:
        """For how long each of the stuck seats has been so."""
        now = self._clock.elapsed()
        return {handle: now - self._by_handle[handle].undead_since for handle in sorted(self.stuck())}

    def publish(self) -> None:
        """Tell the parent the earliest instant at which something not stopped here would act without a lease."""
        if self._can_lapse:
            instants = [t.fence.good_until for t in self._by_handle.values() if not t.is_stopped]
            self._deadline.good_until(min(instants, default=None))
