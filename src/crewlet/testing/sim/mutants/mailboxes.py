"""Bugs of mailboxes: of when a removed seat's mail may go."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from contextlib import ExitStack
from datetime import datetime
from typing import Any

from crewlet.duties import retiring
from crewlet.duties.deletion import Deletion
from crewlet.mail.retirement import Verdict
from crewlet.node.roster import FleetRoster
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import Granted, Lease
from crewlet.seats.leases import LeaseStore
from crewlet.testing.sim.mutants.planting import plant, put


@plant("retired without a grace")
def _no_grace(stack: ExitStack) -> None:
    def verdict(record: Any, *, is_in_company: bool, is_whole: bool, now: datetime, grace_s: float) -> Verdict:
        return original(record, is_in_company=is_in_company, is_whole=is_whole, now=now, grace_s=grace_s / 2)

    original = put(stack, retiring, "verdict", verdict)


@plant("retired while held")
def _while_held(stack: ExitStack) -> None:
    async def claim(self: LeaseStore, resource: str, owner: str, **kwargs: Any) -> Any:
        answer = await original(self, resource, owner, **kwargs)
        if ":retire-" in owner and not isinstance(answer, Granted):
            now = datetime.now()
            return Granted(Lease(resource, owner, 1, now, now))
        return answer

    original = put(stack, LeaseStore, "claim", claim)


@plant("absent by one node's document")
def _own_roster(stack: ExitStack) -> None:
    async def agreed(self: FleetRoster) -> frozenset[str]:
        return frozenset(seat.handle for seat in self._company().seats)

    put(stack, FleetRoster, "agreed", agreed)


@plant("unread roster taken as empty")
def _empty_roster(stack: ExitStack) -> None:
    async def agreed(self: FleetRoster) -> frozenset[str]:
        try:
            return await original(self)
        except Exception:  # noqa: BLE001 -- the bug
            return frozenset()

    original = put(stack, FleetRoster, "agreed", agreed)


@plant("unanswered delete taken for none")
def _unanswered_is_none(stack: ExitStack) -> None:
    async def delete(self: Deletion, subscription: Any) -> None:
        try:
            await original(self, subscription)
        except Unavailable:
            self.may_land = False
            raise

    original = put(stack, Deletion, "_delete", delete)
