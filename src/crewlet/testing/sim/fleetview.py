"""The fleet as its presence leases tell it at true time: what a node's share may have been when it claimed."""

import asyncio
import math
from collections import deque
from dataclasses import dataclass

import msgspec

from crewlet.company.model import Company, Placement
from crewlet.seats.lease import Lease
from crewlet.seats.noderow import NodeRow, row_from_lease
from crewlet.seats.records import LeaseRecord, decode_meta
from crewlet.testing.sim.loop import Process
from crewlet.testing.virtual import EPOCH

_RACE_S = 1.0
_CLAIM_S = 5.0
HEARD_WITHIN_S = 20.0
"""So long after a change of the company the last node has heard of it."""


@dataclass(slots=True)
class _Stay:
    """One stretch during which a node was counted."""

    meta: msgspec.Raw
    row: NodeRow
    since: float
    until: float


class FleetView:
    """Who was counted when."""

    def __init__(self, company: Company, ttl_s: float) -> None:
        self._placements = {seat.handle: seat.placement for seat in company.seats}
        self._changed_at = -math.inf
        self._ttl_s = ttl_s
        self._stays: dict[str, list[_Stay]] = {}
        self._listings: dict[str, deque[tuple[float, float]]] = {}

    def listed(self, process: str, looked_at: float) -> None:
        """A process has had the roster, as it stood then."""
        now = asyncio.get_running_loop().time()
        self._listings.setdefault(process, deque(maxlen=8)).append((now, looked_at))

    def changed(self, company: Company, now: float) -> None:
        """The company has changed. The nodes hear of it one after the other."""
        self._placements = {seat.handle: seat.placement for seat in company.seats}
        self._changed_at = now

    def presence(self, node_id: str, record: LeaseRecord, now: float, *, is_live: bool) -> None:
        """A node's presence lease was written."""
        stays = self._stays.setdefault(node_id, [])
        last = stays[-1] if stays else None
        if not is_live:
            if last is not None:
                last.until = min(last.until, now)
            return
        if last is not None and now <= last.until and last.meta == record.meta:
            last.until = now + self._ttl_s
            return
        row = row_from_lease(
            Lease(f"node:{node_id}", record.owner, record.epoch, EPOCH, EPOCH, meta=decode_meta(record.meta))
        )
        if last is not None and now <= last.until and last.row == row:
            last.until = now + self._ttl_s
            return
        if last is not None:
            last.until = min(last.until, now)
        stays.append(_Stay(record.meta, row, now, now + self._ttl_s))
        del stays[:-50]

    def is_same_group(self, handle: str, other: str) -> bool:
        """Whether both are in the company, and placed alike."""
        mine, others = self._placements.get(handle), self._placements.get(other)
        return mine is not None and mine == others

    def share(self, handle: str, owner: str, process: Process, now: float, *, failed_at: float) -> int | None:
        """The largest share of a seat's group that the process may have computed when it claims now.

        None when that cannot be told: the company has just changed, the process read no roster and takes itself for the
        whole fleet, it stood still with the claim on its way, or a call of it failed lately (at `failed_at`), so that
        it may go by an older roster, or no longer run a seat that the store still shows as its own.
        """
        # The claim may have been decided by the roster before the newest.
        listings = self._listings.get(process.name, ())
        listed_at = max((looked_at for heard_at, looked_at in listings if heard_at < now - _CLAIM_S), default=None)
        placement = self._placements.get(handle)
        if (
            listed_at is None
            or placement is None
            or now - failed_at <= self._ttl_s
            or now - process.thawed_at <= _CLAIM_S
        ):
            return None
        if now - self._changed_at <= HEARD_WITHIN_S + 2 * self._ttl_s:
            return None
        size = sum(other == placement for other in self._placements.values())
        since, me = listed_at - _RACE_S, owner.partition(":")[0]
        return -(-size // self._counted(placement, me, since, now))

    def _counted(self, placement: Placement, me: str, since: float, until: float) -> int:
        """How many nodes counted all that time, the claiming one included whether or not its row shows.

        One that left meanwhile may have been heard to leave, and its successor is not in the roster yet.
        """
        return 1 + sum(
            self._is_counted(stays, placement, node_id, since, until)
            for node_id, stays in self._stays.items()
            if node_id != me
        )

    def _is_counted(self, stays: list[_Stay], placement: Placement, node_id: str, since: float, until: float) -> bool:
        for stay in stays:
            if stay.until <= since:
                continue
            if stay.since > since or not (stay.row.places_seats and placement.matches(node_id, stay.row.labels)):
                return False
            since = stay.until
            if since >= until:
                return True
        return False
