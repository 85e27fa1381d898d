"""A seat host in virtual time over a lease store whose faults a test sets."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from msgspec.structs import replace

from crewlet.company.model import Placement, Seat
from crewlet.kit.beats import Beats
from crewlet.ports.errors import Unavailable
from crewlet.ports.term import Term
from crewlet.seats.host import Freed, HostConfig, SeatHost
from crewlet.seats.lease import ClaimRefused, ClaimResult, Granted, Lease, seat_resource
from crewlet.seats.leases import LeaseStore
from crewlet.seats.presence import StatusSource
from crewlet.testing.virtual import VirtualClock, until

ALL_ROLES = frozenset({"data", "ingress", "seats", "workers"})


class Counter:
    """An entropy that counts."""

    def __init__(self) -> None:
        self._n = 0

    def token(self, nbytes: int = 8) -> str:
        self._n += 1
        return f"{self._n:0{2 * nbytes}x}"

    def uuid(self) -> str:
        return self.token(16)

    def random(self) -> float:
        return 0.5


@dataclass
class Fleet:
    """The leases of a fleet in one dict, on true time."""

    clock: VirtualClock
    ttl_s: float = 30.0
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    deadlines: dict[str, float] = field(default_factory=dict[str, float])
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    hints: dict[str, str] = field(default_factory=dict[str, str])

    def live(self, resource: str) -> Lease | None:
        return self.leases.get(resource) if self.deadlines.get(resource, 0.0) > self.clock.elapsed() else None

    def write(self, lease: Lease, ttl_s: float) -> Lease:
        stamped = replace(lease, expires_at=self.clock.now() + timedelta(seconds=ttl_s))
        self.leases[lease.resource] = stamped
        self.deadlines[lease.resource] = self.clock.elapsed() + ttl_s
        return stamped

    def owner(self, handle: str) -> str | None:
        lease = self.live(seat_resource(handle))
        return lease.owner if lease else None

    def drop(self, resource: str) -> None:
        self.leases.pop(resource, None)
        self.deadlines.pop(resource, None)

    def steal(self, handle: str, owner: str = "peer:1") -> Lease:
        """A peer holds the seat from now on, whoever held it."""
        resource = seat_resource(handle)
        self.epochs[resource] = self.epochs.get(resource, 0) + 1
        now = self.clock.now()
        return self.write(Lease(resource, owner, self.epochs[resource], now, now), self.ttl_s)


class FaultyLeases:
    """The signatures of the lease store over a `Fleet`, with faults.

    Attributes:
        down: verbs that raise Unavailable: `claim`, `renew`, `release`, `list`, `hints`.
        silent: verbs, or verbs with a resource, that never answer.
        delays: seconds a verb takes before it takes effect, by verb or by `verb resource`.
        late: seconds between effect and answer, likewise.
        asked: every call, as `verb resource`, in order.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.delays: dict[str, float] = {}
        self.late: dict[str, float] = {}
        self.asked: list[str] = []
        self.floor: int | None = None

    @property
    def ttl_s(self) -> float:
        return self.fleet.ttl_s

    async def claim(
        self,
        resource: str,
        owner: str,
        *,
        ttl_s: float | None = None,
        preferred: str | None = None,
        meta: Mapping[str, Any] | None = None,
        gated: bool = False,
    ) -> ClaimResult:
        await self._before("claim", resource)
        fleet = self.fleet
        lease = fleet.live(resource)
        if lease is not None and lease.owner != owner:
            return ClaimRefused("held", holder=lease.owner)
        if gated and self.floor is not None:
            return ClaimRefused("protocol", floor=self.floor)
        if lease is None:
            fleet.epochs[resource] = fleet.epochs.get(resource, 0) + 1
            lease = Lease(resource, owner, fleet.epochs[resource], fleet.clock.now(), fleet.clock.now())
        if preferred is not None:
            fleet.hints[resource] = preferred
        lease = fleet.write(replace(lease, meta=dict(meta or {}), preferred=preferred), ttl_s or fleet.ttl_s)
        await self._after("claim", resource)
        return Granted(lease)

    async def renew(
        self,
        resource: str,
        owner: str,
        epoch: int,
        *,
        ttl_s: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> bool:
        await self._before("renew", resource)
        lease = self.fleet.live(resource)
        is_ours = lease is not None and lease.owner == owner and lease.epoch == epoch
        if lease is not None and is_ours:
            self.fleet.write(lease if meta is None else replace(lease, meta=dict(meta)), ttl_s or self.ttl_s)
        await self._after("renew", resource)
        return is_ours

    async def release(self, resource: str, owner: str, epoch: int) -> bool:
        await self._before("release", resource)
        lease = self.fleet.live(resource)
        is_ours = lease is not None and lease.owner == owner and lease.epoch == epoch
        if is_ours:
            self.fleet.drop(resource)
        await self._after("release", resource)
        return is_ours

    async def list_live(self, cls: str) -> list[Lease]:
        await self._before("list", cls)
        names = sorted(self.fleet.leases)
        return [lease for name in names if name.startswith(f"{cls}:") and (lease := self.fleet.live(name)) is not None]

    async def hints(self, node_id: str, cls: str) -> set[str]:
        await self._before("hints", cls)
        return {resource for resource, node in self.fleet.hints.items() if node == node_id}

    async def _before(self, verb: str, resource: str) -> None:
        self.asked.append(f"{verb} {resource}")
        await asyncio.sleep(self.delays.get(f"{verb} {resource}", self.delays.get(verb, 0.001)))
        if verb in self.silent or f"{verb} {resource}" in self.silent:
            await asyncio.Event().wait()
        if verb in self.down:
            raise Unavailable(f"{verb}: nobody answered")

    async def _after(self, verb: str, resource: str) -> None:
        await asyncio.sleep(self.late.get(f"{verb} {resource}", self.late.get(verb, 0.0)))

    def claims(self) -> list[str]:
        """The seats that were claimed, or tried."""
        return [call.partition("seat:")[2] for call in self.asked if call.startswith("claim seat:")]


class RecordingHooks:
    """Hooks that note every call and fail where a test says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.busy: set[str] = set()
        self.fails_acquire: set[str] = set()
        self.fails_release: set[str] = set()
        self.acquire_takes: dict[str, float] = {}
        self.release_takes: dict[str, float] = {}
        self.fails_stop: set[str] = set()
        self.raises_on_admission: set[str] = set()
        self.terms: list[Term] = []

    async def on_acquire(self, term: Term, good_until: float) -> None:
        handle = term.resource.partition(":")[2]
        self.terms.append(term)
        self.calls.append(f"acquire {handle}")
        await asyncio.sleep(self.acquire_takes.get(handle, 0.0))
        if handle in self.fails_acquire:
            raise RuntimeError("no programs")
        self.calls.append(f"acquired {handle}")

    async def on_release(self, term: Term, *, reason: str, is_voluntary: bool) -> None:
        handle = term.resource.partition(":")[2]
        self.calls.append(f"release {handle} {reason} {'voluntary' if is_voluntary else 'fenced'}")
        await asyncio.sleep(self.release_takes.get(handle, 0.0))
        if handle in self.fails_release:
            raise RuntimeError("detach unproven")
        self.calls.append(f"released {handle}")

    def on_admission(self, handle: str, admits: bool) -> None:
        self.calls.append(f"admits {handle} {admits}")
        if handle in self.raises_on_admission:
            raise RuntimeError("admission callback")

    def on_established(self, term: Term) -> None:
        self.calls.append(f"established {term.resource.partition(':')[2]}")

    def on_renewed(self, term: Term, good_until: float) -> None:
        pass

    def is_busy(self, handle: str) -> bool:
        return handle in self.busy

    async def stop_programs(self, term: Term) -> None:
        handle = term.resource.partition(":")[2]
        self.calls.append(f"stop {handle}")
        await asyncio.sleep(0.01)
        if handle in self.fails_stop:
            raise RuntimeError("still alive")

    def of(self, word: str) -> list[str]:
        """The calls that begin with a word."""
        return [call for call in self.calls if call.split()[0] == word]

    def releases(self) -> list[str]:
        """`handle reason mode` of each release that began."""
        return [call.partition(" ")[2] for call in self.of("release")]


class Instants:
    """A deadline that remembers."""

    def __init__(self) -> None:
        self.told: list[float | None] = []

    def good_until(self, instant: float | None) -> None:
        self.told.append(instant)

    def beat(self) -> None:
        """Not counted."""

    @property
    def last(self) -> float | None:
        return self.told[-1] if self.told else None


@dataclass
class Rig:
    """One host and all that it touches."""

    fleet: Fleet
    leases: FaultyLeases
    hooks: RecordingHooks
    deadline: Instants
    seats: list[Seat]
    company: list[Callable[[], Sequence[Seat]]]
    host: SeatHost
    clock: VirtualClock
    behind: list[bool | None]
    unroutable: list[bool | None]
    beats: list[float]
    freed: list[Callable[[Freed], None]]


def seats_of(*handles: str, placement: Placement | None = None) -> list[Seat]:
    return [Seat(handle, placement=placement or Placement()) for handle in handles]


def rig(
    seats: Iterable[Seat] = (),
    *,
    fleet: Fleet | None = None,
    node_id: str = "a",
    ttl_s: float = 30.0,
    can_lapse: bool = True,
    status: StatusSource | None = None,
    watched: Beats | None = None,
    **config: Any,
) -> Rig:
    """A host that is not started. `config` goes to `HostConfig`."""
    clock = VirtualClock()
    fleet = fleet or Fleet(clock, ttl_s)
    leases, hooks, deadline, company = FaultyLeases(fleet), RecordingHooks(), Instants(), list(seats)
    behind: list[bool | None] = []
    unroutable: list[bool | None] = []
    beats: list[float] = []
    freed: list[Callable[[Freed], None]] = []
    company_of: list[Callable[[], Sequence[Seat]]] = [lambda: company]
    settings: dict[str, Any] = {"roles": ALL_ROLES, "labels": {}, **config}
    host = SeatHost(
        HostConfig(node_id=node_id, owner=f"{node_id}:1", **settings),
        cast("LeaseStore", leases),
        lambda: list(company_of[-1]()),
        hooks,
        clock=clock,
        entropy=Counter(),
        deadline=deadline,
        leases_can_lapse=can_lapse,
        may_claim=lambda: not _broken_or(behind),
        can_route=lambda: not _broken_or(unroutable),
        beats=watched,
        on_beat=lambda: beats.append(clock.elapsed()),
        status=status,
        on_freed=lambda news: freed[-1](news) if freed else None,
    )
    return Rig(fleet, leases, hooks, deadline, company, company_of, host, clock, behind, unroutable, beats, freed)


def _broken_or(says: list[bool | None]) -> bool:
    """The newest answer, no without one; None breaks the check."""
    answer = says[-1] if says else False
    if answer is None:
        raise RuntimeError("the check broke")
    return answer


def peer_row(fleet: Fleet, node_id: str, **meta: object) -> None:
    """A peer is live for an hour."""
    now = fleet.clock.now()
    fleet.write(Lease(f"node:{node_id}", f"{node_id}:1", 1, now, now, meta=meta), 3600.0)


async def passes(r: Rig, count: int = 1) -> None:
    """Wait until so many more passes have ended."""
    for _ in range(count):
        before = r.host.last_sweep
        began_at = before.at if before else -1.0
        await until(lambda began_at=began_at: r.host.last_sweep is not None and r.host.last_sweep.at > began_at)
        await asyncio.sleep(0.5)
