"""Which seats and schedules the company has, as the whole fleet sees it: the ground on which one is called gone.

Every node says on its presence row which its own document has. Only while all live nodes say the same is it known. A
node that still runs an older document, and one that does not say, make it unknown, so that nobody retires what a peer
has just added back.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from crewlet.company.model import Company
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import NODE, Lease
from crewlet.seats.leases import LeaseStore

ROSTER_KEY = "roster"
SCHEDULES_KEY = "schedules"


class FleetRoster:
    """What one node's document has, and whether the fleet shares it."""

    def __init__(self, company: Callable[[], Company], leases: LeaseStore, owner: str) -> None:
        self._company = company
        self._digests: tuple[Company, Mapping[str, str]] | None = None
        self._leases = leases
        self._owner = owner

    async def status(self) -> Mapping[str, Any]:
        """What the presence row says."""
        return self._mine()

    def others(self, presences: Sequence[Lease]) -> tuple[str, ...]:
        """Those of the live nodes that say that they have other seats; one that does not say is none of them."""
        mine = self._mine()[ROSTER_KEY]
        return tuple(
            lease.name for lease in presences if (said := _said(lease, ROSTER_KEY)) is not None and said != mine
        )

    async def agreed(self) -> frozenset[str]:
        """The handles of the company's seats.

        Raises:
            Unavailable: the presence rows cannot be read, or a live node has, or may have, other seats.
        """
        handles = _handles(self._company())
        await self._agree(ROSTER_KEY, "seats")
        return handles

    async def agree_on_schedules(self) -> None:
        """Return if the whole fleet has the same schedules, due at the same times.

        Raises:
            Unavailable: the presence rows cannot be read, or a live node has, or may have, other schedules.
        """
        await self._agree(SCHEDULES_KEY, "schedules")

    async def _agree(self, key: str, what: str) -> None:
        mine = self._mine()[key]
        for lease in await self._leases.list_live(NODE):
            if lease.owner == self._owner:
                continue
            said = _said(lease, key)
            if said != mine:
                how = f"has another list of {what}" if said is not None else f"does not say which {what} it knows"
                raise Unavailable(f"the company's {what} are not certain: node {lease.name} {how}")

    def _mine(self) -> Mapping[str, str]:
        company = self._company()
        if self._digests is None or self._digests[0] is not company:
            times = frozenset(f"{schedule.name} {schedule.rule}" for schedule in company.schedules)
            self._digests = company, {ROSTER_KEY: digest(_handles(company)), SCHEDULES_KEY: digest(times)}
        return self._digests[1]


def _handles(company: Company) -> frozenset[str]:
    return frozenset(seat.handle for seat in company.seats)


def _said(lease: Lease, key: str) -> object:
    status = lease.meta.get("status")
    return cast("Mapping[str, object]", status).get(key) if isinstance(status, Mapping) else None


def digest(names: frozenset[str]) -> str:
    """What tells one set of names from another."""
    return sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
