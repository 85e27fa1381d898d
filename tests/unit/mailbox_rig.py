"""A company's mailboxes, their registry and the seats' leases over faulty twins, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.duties.retiring import MailboxSweep, Report
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.mail.registry import MAILBOXES_BUCKET, MailboxRecord, MailboxRegistry
from crewlet.mail.retired import RETIREMENTS_BUCKET, Retirements
from crewlet.mail.retirement import GRACE_S
from crewlet.ports.errors import NotTaken, Unavailable
from crewlet.ports.mail import Backlog, Subscription
from crewlet.seats.lease import Granted, seat_resource
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.testing.faults import FaultyCells
from crewlet.testing.twins.mail import Fault, PlainWire, TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock

TTL_S = 45.0
ALL_THREE = ["inbox", "control", "reflect"]

T = TypeVar("T")


class LateWire(PlainWire):
    """A way to the broker on which requests can be held: nobody answers them, and they arrive at `deliver_held`.

    Attributes:
        holds: the names of the requests that stay on their way.
        held: what they will do.
        refuses: the names of those that are turned away.
    """

    def __init__(self, clock: VirtualClock, fault: Fault) -> None:
        super().__init__(clock, fault)
        self._sleep = clock.sleep
        self.holds: set[str] = set()
        self.refuses: set[str] = set()
        self.held: list[Callable[[], object]] = []

    async def ask(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        admit: Callable[[], None] | None = None,
        final_within_s: float | None = None,
    ) -> T:
        if name not in self.holds | self.refuses:
            return await super().ask(name, effect, admit=admit, final_within_s=final_within_s)
        if admit is not None:
            admit()
        if name in self.refuses:
            raise NotTaken(f"{name} is turned away")
        self.held.append(effect)
        await self._sleep(5.0 if final_within_s is None else final_within_s)
        raise Unavailable(f"{name} is not answered")

    def deliver_held(self) -> None:
        """Let what is on its way arrive, whoever sent it and whatever became of them."""
        held, self.held = self.held, []
        for effect in held:
            effect()


class Office:
    """One store and one broker. `roster` is the company in force; `None` says that there is no revision."""

    def __init__(self, *seats: str) -> None:
        self.clock = VirtualClock()
        self.roster: frozenset[str] | None = frozenset(seats)
        self.roster_problem: Exception | None = None
        self.before: Callable[[str], Awaitable[None]] | None = None
        """Called with the name of each request to the broker, before it takes effect."""
        self.wire = LateWire(self.clock, self._fault)
        self.mail = TwinMail(TwinBroker(self.clock, ack_window_s=TTL_S), clock=self.clock, wire=self.wire)

    async def open(self) -> "Office":
        store = LocalCells(self.clock)
        self.cells = FaultyCells(await store.open(MAILBOXES_BUCKET), sleep=self.clock.sleep)
        self.lease_cells = FaultyCells(await store.open(leases_bucket(TTL_S)), sleep=self.clock.sleep)
        self.epochs = await store.open(EPOCHS_BUCKET)
        self.registry = MailboxRegistry(self.cells)
        self.retirement_cells = FaultyCells(await store.open(RETIREMENTS_BUCKET), sleep=self.clock.sleep)
        self.retirements = Retirements(self._open_retirements)
        self.leases = LeaseStore(self.lease_cells, self.epochs, clock=self.clock, entropy=SystemEntropy())
        self.mailboxes = Mailboxes(self.mail, self.clock, alarm_after_s=TTL_S, registry=self.registry)
        await self.mail.start()
        return self

    def sweeper(self, node_id: str = "n1", *, grace_s: float = GRACE_S) -> MailboxSweep:
        return MailboxSweep(
            self.registry,
            self.mailboxes,
            self.mail,
            self.retirements,
            self.leases,
            self._roster,
            node_id=node_id,
            clock=self.clock,
            entropy=SystemEntropy(),
            grace_s=grace_s,
        )

    async def sweep(self) -> Report:
        return await self.sweeper().sweep()

    async def remove(self, *seats: str) -> None:
        """Take seats out of the company and let a sweep see it."""
        assert self.roster is not None
        self.roster -= set(seats)
        await self.sweep()

    def add(self, *seats: str) -> None:
        assert self.roster is not None
        self.roster |= set(seats)

    async def claim(self, handle: str, owner: str = "n9:1") -> bool:
        """Claim a seat as a node does."""
        return isinstance(await self.leases.claim(seat_resource(handle), owner, gated=True), Granted)

    async def release(self, handle: str, owner: str = "n9:1") -> None:
        lease = await self.leases.get(seat_resource(handle))
        assert lease is not None and await self.leases.release(lease.resource, owner, lease.epoch)

    async def record(self, handle: str) -> MailboxRecord | None:
        return await self.registry.get(handle)

    async def there(self, handle: str) -> list[str]:
        """Which of a seat's subscriptions the broker has, by the last part of their topics."""
        found = [one for one in topics.mailbox(handle) if await self.waiting(one) is not None]
        return [one.topic.rpartition(".")[2] for one in found]

    async def waiting(self, subscription: Subscription) -> Backlog | None:
        before, self.before = self.before, None
        try:
            return await self.mail.waiting(subscription)
        finally:
            self.before = before

    async def now(self) -> datetime:
        return (await self.cells.mark()).store_now

    async def _open_retirements(self) -> FaultyCells:
        return self.retirement_cells

    async def _roster(self) -> frozenset[str] | None:
        if self.roster_problem is not None:
            raise self.roster_problem
        return self.roster

    async def _fault(self, request: str) -> None:
        if self.before is not None:
            await self.before(request)


def refusing(*requests: str) -> Callable[[str], Awaitable[None]]:
    """For `Office.before`: these requests get no answer."""

    async def refuse(request: str) -> None:
        if request in requests:
            raise Unavailable(f"{request} is not answered")

    return refuse


async def post(office: Office, handle: str, message_id: str = "m1") -> None:
    await office.mail.publish(topics.inbox(handle).topic, b"hello", message_id=message_id)


async def absent_for(office: Office, *handles: str, seconds: float = GRACE_S) -> None:
    """Seats with mailboxes, removed so long ago."""
    await office.mailboxes.ensure([*handles, "boss"])
    await office.remove(*handles)
    await office.clock.sleep(seconds)


async def die_half_way(office: Office, handle: str) -> None:
    """A sweep that is cut off after it deleted the inbox, and whose lease is gone."""
    deleted = asyncio.Event()

    async def hang(request: str) -> None:
        if request == "delete_subscription":
            if await office.there(handle) == ALL_THREE:
                return
            deleted.set()
            await asyncio.Event().wait()

    office.before = hang
    sweeping = asyncio.create_task(office.sweep())
    await deleted.wait()
    sweeping.cancel()
    await asyncio.wait([sweeping])
    office.before = None
    record = await office.record(handle)
    assert record is not None and record.retiring_since is not None
