"""The fleet as its leases tell it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from crewlet.company.model import Company, Seat
from crewlet.mail.registry import MailboxRegistry
from crewlet.node.status import FleetSnapshot, NodeSnapshot, PauseSnapshot, SeatSnapshot, Unplaceable
from crewlet.ports.cells import Cells
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import NODE, SEAT, Lease
from crewlet.seats.leases import LeaseStore
from crewlet.seats.noderow import ROLES, NodeRow, row_from_lease
from crewlet.seats.placement import plan

_SPECTATOR = NodeRow(node_id="", roles=frozenset({"ingress"}))
"""Asks the placement arithmetic without taking part in it."""


class FleetReader:
    """Reads nodes and seats from the lease bucket, so that every node answers alike."""

    def __init__(
        self,
        leases: LeaseStore,
        bucket: Cells,
        company: Callable[[], Company],
        node_id: str,
        pauses: Callable[[], Awaitable[Mapping[str, PauseSnapshot]]],
        *,
        others: Callable[[Sequence[Lease]], tuple[str, ...]],
        registry: MailboxRegistry,
    ) -> None:
        self._others = others
        self._registry = registry
        self._pauses = pauses
        self._leases = leases
        self._bucket = bucket
        self._company = company
        self._node_id = node_id

    async def read(self) -> FleetSnapshot:
        """Two lists, the store's clock and the pauses, read side by side.

        Raises:
            Unavailable: the store did not answer.
        """
        nodes, (seats, ended), mark, pauses = await asyncio.gather(
            self._leases.list_live(NODE), self._leases.survey(SEAT), self._bucket.mark(), self._paused()
        )
        company, now = self._company(), mark.store_now
        rows = {lease.name: row_from_lease(lease) for lease in nodes}
        held = {lease.name: lease for lease in seats}
        others = self._others(nodes)
        unplaceable = plan(list(rows.values()), company.seats, _SPECTATOR).unplaceable if rows else ()
        return FleetSnapshot(
            company=company.name,
            this_node=self._node_id,
            nodes=tuple(
                _node(lease, rows[lease.name], seats, now) for lease in sorted(nodes, key=lambda lease: lease.name)
            ),
            seats=tuple(
                replace(
                    _seat(seat, held.get(seat.handle), now, (pauses or {}).get(seat.handle)),
                    free_since=None if seat.handle in held else ended.get(seat.handle),
                )
                for seat in company.seats
            ),
            unplaceable=tuple(Unplaceable(seat.handle, str(seat.placement)) for seat in unplaceable),
            unmanned_roles=tuple(
                role for role in ROLES if rows and not any(role in row.roles for row in rows.values())
            ),
            pauses_known=pauses is not None,
            other_documents=others,
            disputed=await self._disputed(held) if others else (),
            strays=tuple(_held(lease, now) for handle, lease in sorted(held.items()) if company.seat(handle) is None),
        )

    async def _disputed(self, held: Collection[str]) -> tuple[str, ...]:
        """The seats that some document names and nobody holds; read only while documents differ."""
        named = {seat.handle for seat in self._company().seats}
        try:
            # A record that is not clean is of a seat that all documents had left before.
            records = (await self._registry.list()).records
            named |= {handle for handle, record in records.items() if record.is_clean}
        except Unavailable:
            pass  # the seats of this node's own document are told all the same
        return tuple(sorted(named.difference(held)))

    async def _paused(self) -> Mapping[str, PauseSnapshot] | None:
        try:
            return await self._pauses()
        except Unavailable:
            return None


def _node(lease: Lease, row: NodeRow, seats: Sequence[Lease], now: datetime) -> NodeSnapshot:
    return NodeSnapshot(
        id=lease.name,
        roles=tuple(sorted(row.roles)),
        labels=dict(row.labels),
        owner=lease.owner,
        protocol=lease.protocol,
        seats=sum(seat.owner == lease.owner for seat in seats),
        expires_in=_seconds_left(lease, now),
        draining=lease.meta.get("draining") is True,
        seats_withdrawn=row.seats_withdrawn,
    )


def _seat(seat: Seat, lease: Lease | None, now: datetime, pause: PauseSnapshot | None) -> SeatSnapshot:
    shown = _held(lease, now) if lease else SeatSnapshot(seat.handle, "", "", "")
    return replace(shown, title=seat.title, runner=seat.runner.kind, placement=str(seat.placement), pause=pause)


def _held(lease: Lease, now: datetime) -> SeatSnapshot:
    return SeatSnapshot(
        handle=lease.name,
        title="",
        runner="",
        placement="",
        node=lease.owner.rpartition(":")[0],
        owner=lease.owner,
        epoch=lease.epoch,
        acquired_at=lease.acquired_at,
        expires_in=_seconds_left(lease, now),
    )


def _seconds_left(lease: Lease, now: datetime) -> float:
    return round(max(0.0, (lease.expires_at - now).total_seconds()), 3)
