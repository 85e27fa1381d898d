"""P9, judged: the mail of a removed seat outlives it by the grace, and nobody who holds the seat loses its mailbox.

An absence is held against the documents that the live nodes have, a deletion against the store's own records, at the
instant at which it takes effect.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import msgspec

from crewlet.mail import topics
from crewlet.mail.registry import MAILBOXES_BUCKET
from crewlet.ports.mail import Subscription
from crewlet.seats.records import LeaseRecord
from crewlet.testing.sim.facts import Tenure
from crewlet.testing.sim.loop import Process
from crewlet.testing.virtual import EPOCH

MAILBOXES = MAILBOXES_BUCKET.name

_SWEEP_S = 30.0
"""A sweep may go by a roster that is so old."""
_SLACK_S = 0.001


class Absence(msgspec.Struct):
    """What the registry has of a seat."""

    absent_since: datetime | None = None
    retiring_since: datetime | None = None


class MailboxJudge:
    """Knows what the registry says.

    Args:
        grace_s: how long the mail of a removed seat is to be kept.
        leases: the leases as the store has them, by key.
        has_had: since when a process has a document with a seat in it; None where it has none.
        fail: called with a promise and how it was broken.
    """

    def __init__(
        self,
        grace_s: float,
        ttl_s: float,
        leases: Mapping[str, Tenure],
        has_had: Callable[[str, str], float | None],
        fail: Callable[[str, str], None],
    ) -> None:
        self._grace_s = grace_s
        self._ttl_s = ttl_s
        self._leases = leases
        self._has_had = has_had
        self._fail = fail
        self._registered: dict[str, Absence] = {}
        self._awaited: dict[str, asyncio.Event] = {}

    async def retiring(self, handle: str) -> float:
        """Wait until a seat's mailbox is marked as being retired; returns when the lease was won for it."""
        await self._awaited.setdefault(handle, asyncio.Event()).wait()
        return self._leases[f"seat.{handle}"].began_at

    def writing(self, process: Process, handle: str, value: bytes | None) -> None:
        """A process sends a record off."""
        if value is None:
            return
        known = self._registered.get(handle)
        record = msgspec.json.decode(value, type=Absence)
        if record.absent_since is None or (known is not None and known.absent_since is not None):
            return
        now = asyncio.get_running_loop().time()
        for owner, present_since in {**self._counted(), process.name: 0.0}.items():
            since = self._has_had(owner, handle)
            # A peer's presence may be a TTL old and tell of the document before, or be younger than the sweep's look.
            shown_s = 0.0 if owner == process.name else self._ttl_s
            if since is not None and now - max(since + shown_s, present_since, process.thawed_at) > _SWEEP_S:
                self._fail("P9", f"{process.name} calls {handle} absent, which {owner} has had for {now - since:.1f} s")

    def wrote(self, handle: str, value: bytes | None) -> None:
        """The registry has changed."""
        if value is None:
            self._registered.pop(handle, None)
        else:
            record = self._registered[handle] = msgspec.json.decode(value, type=Absence)
            if record.retiring_since is not None and handle in self._awaited:
                self._awaited.pop(handle).set()

    def deleted(self, subscription: Subscription) -> None:
        """A subscription is gone, with its mail."""
        handle = topics.seat_of(subscription)
        if handle is None:
            return
        now, record = asyncio.get_running_loop().time(), self._registered.get(handle)
        if record is None or record.absent_since is None or record.retiring_since is None:
            self._fail("P9", f"the mailbox of {handle} was deleted, and its record does not say that it is retired")
            return
        age_s = (EPOCH + timedelta(seconds=now) - record.absent_since).total_seconds()
        if age_s < self._grace_s - _SLACK_S:
            self._fail("P9", f"the mailbox of {handle} was deleted {age_s:.1f} s after it was missed")
        lease = self._leases.get(f"seat.{handle}")
        if lease is not None and lease.is_held and lease.is_live(now) and not is_retirer(lease.record):
            self._fail("P9", f"the mailbox of {handle} was deleted while {lease.record.owner} holds the seat")

    def _counted(self) -> dict[str, float]:
        """The processes whose presence lives, and since when it does."""
        now = asyncio.get_running_loop().time()
        return {
            lease.record.owner: lease.began_at
            for key, lease in self._leases.items()
            if key.startswith("node.") and lease.is_held and lease.is_live(now)
        }


def is_retirer(record: LeaseRecord) -> bool:
    """Whether a seat's lease is held to retire its mailbox, and by nobody who would run it."""
    return record.owner.partition(":")[2].startswith("retire-")
