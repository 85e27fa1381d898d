"""Which seats the company has, as the whole fleet sees it: the ground on which a seat is called absent.

Every node says on its presence row which seats its own document has. Only while all live nodes say the same is the
roster known. A node that still runs an older document, and one that does not say, make it unknown, so that nobody
retires what a peer has just added back.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, cast

from crewlet.company.model import Company
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import NODE
from crewlet.seats.leases import LeaseStore

ROSTER_KEY = "roster"


class FleetRoster:
    """The roster of one node's document, and whether the fleet shares it."""

    def __init__(self, company: Callable[[], Company], leases: LeaseStore, node_id: str) -> None:
        self._company = company
        self._leases = leases
        self._node_id = node_id

    async def status(self) -> Mapping[str, Any]:
        """What the presence row says."""
        return {ROSTER_KEY: digest(self._handles())}

    async def agreed(self) -> frozenset[str]:
        """The handles of the company's seats.

        Raises:
            Unavailable: the presence rows cannot be read, or a live node has, or may have, other seats.
        """
        handles = self._handles()
        mine = digest(handles)
        for lease in await self._leases.list_live(NODE):
            if lease.name == self._node_id:
                continue
            status = lease.meta.get("status")
            said = cast("Mapping[str, object]", status).get(ROSTER_KEY) if isinstance(status, Mapping) else None
            if said != mine:
                how = "has another list of seats" if said is not None else "does not say which seats it knows"
                raise Unavailable(f"the company's seats are not certain: node {lease.name} {how}")
        return handles

    def _handles(self) -> frozenset[str]:
        return frozenset(seat.handle for seat in self._company().seats)


def digest(handles: frozenset[str]) -> str:
    """What tells one set of handles from another."""
    return sha256("\n".join(sorted(handles)).encode()).hexdigest()[:16]
