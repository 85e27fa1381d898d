"""Which seats the company has, as the whole fleet sees it: the ground on which a seat is called absent.

Every node says on its presence row which seats its own document has. Only while all live nodes say the same is the
roster known. A node that still runs an older document, and one that does not say, make it unknown, so that nobody
retires what a peer has just added back.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from crewlet.company.model import Company
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import NODE, Lease
from crewlet.seats.leases import LeaseStore

ROSTER_KEY = "roster"


class FleetRoster:
    """The roster of one node's document, and whether the fleet shares it."""

    def __init__(self, company: Callable[[], Company], leases: LeaseStore, node_id: str) -> None:
        self._company = company
        self._digest: tuple[Company, str] | None = None
        self._leases = leases
        self._node_id = node_id

    async def status(self) -> Mapping[str, Any]:
        """What the presence row says."""
        return {ROSTER_KEY: self._mine()}

    def others(self, presences: Sequence[Lease]) -> tuple[str, ...]:
        """Those of the live nodes that say that they have other seats; one that does not say is none of them."""
        mine = self._mine()
        return tuple(lease.name for lease in presences if (said := _said(lease)) is not None and said != mine)

    async def agreed(self) -> frozenset[str]:
        """The handles of the company's seats.

        Raises:
            Unavailable: the presence rows cannot be read, or a live node has, or may have, other seats.
        """
        handles = self._handles()
        mine = self._mine()
        for lease in await self._leases.list_live(NODE):
            if lease.name == self._node_id:
                continue
            said = _said(lease)
            if said != mine:
                how = "has another list of seats" if said is not None else "does not say which seats it knows"
                raise Unavailable(f"the company's seats are not certain: node {lease.name} {how}")
        return handles

    def _mine(self) -> str:
        company = self._company()
        if self._digest is None or self._digest[0] is not company:
            self._digest = company, digest(frozenset(seat.handle for seat in company.seats))
        return self._digest[1]

    def _handles(self) -> frozenset[str]:
        return frozenset(seat.handle for seat in self._company().seats)


def _said(lease: Lease) -> object:
    status = lease.meta.get("status")
    return cast("Mapping[str, object]", status).get(ROSTER_KEY) if isinstance(status, Mapping) else None


def digest(handles: frozenset[str]) -> str:
    """What tells one set of handles from another."""
    return sha256("\n".join(sorted(handles)).encode()).hexdigest()[:16]
