"""A world for the scheduler: virtual time, cells that can fail, and the mail twin."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.company.instants import Schedule
from crewlet.company.model import Company, Seat
from crewlet.duties.asking import Asking
from crewlet.duties.fires import FIRES_BUCKET, Fires
from crewlet.duties.firing import Firing
from crewlet.duties.scheduling import Scheduler
from crewlet.mail import topics
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault, FaultyCells
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import EPOCH, VirtualClock

HOUR = 3600.0
TTL_S = 6.0


def still() -> None:
    pass


async def nothing(request: str) -> None:
    del request


class SteppedFires(Fires):
    """A store whose clock somebody sets."""

    step = timedelta(0)

    async def now(self) -> datetime:
        return await super().now() + self.step


class World:
    """One bucket, one broker, as many schedulers as a test wants."""

    def __init__(self) -> None:
        self.clock = VirtualClock(offset_s=0.0)
        self.company = self.of(Schedule("poll", "reader", "look", every_s=3600))
        self.disagreement = ""
        self.published: list[tuple[str, Mapping[str, Any]]] = []

    @staticmethod
    def of(*schedules: Schedule) -> Company:
        return Company("acme", (Seat("reader"),), schedules=schedules)

    async def open(self) -> "World":
        store = LocalCells(self.clock)
        self.cells = FaultyCells(await store.open(FIRES_BUCKET), sleep=self.clock.sleep)
        self.ask = Asking(TTL_S, self.clock)
        self.fires = SteppedFires(self.cells, self.ask)
        self.pause_cells = FaultyCells(await store.open(PAUSES_BUCKET), sleep=self.clock.sleep)
        self.pauses = Pauses(self.pause_cells)
        self.on_request: Callable[[str], Awaitable[None]] = nothing
        self.mail = TwinMail(TwinBroker(self.clock, ack_window_s=30.0), fault=self.fault)
        await self.mail.start()
        for subscription in topics.mailbox("reader"):
            await self.mail.ensure_subscription(subscription)
        return self

    async def fault(self, request: str) -> None:
        await self.on_request(request)

    def scheduler(self, owner: str = "one:1") -> Scheduler:
        outbox = Outbox(self.mail, lambda: self.company, self.clock, owner)
        firing = Firing(self.fires, outbox, self.ask, owner=owner, tell=self.tell)
        return Scheduler(lambda: self.company, self.fires, firing, self.pauses, self.ask, self.agree)

    async def claim_and_die(self, scheduler: Scheduler) -> None:
        """A tick whose claim is written, and nothing more."""
        self.cells.next("read", Fault.LOST, skip=1)
        with pytest.raises(Unavailable):
            await scheduler.tick(still)

    def tell(self, event_type: str, about: Mapping[str, Any]) -> None:
        self.published.append((event_type, about))

    async def agree(self) -> None:
        if self.disagreement:
            raise Unavailable(self.disagreement)

    async def history(self, name: str = "poll", unit_s: float = HOUR) -> list[str]:
        """What became of each instant, in the hours since the world began, or in other units."""
        told: list[str] = []
        for fire in [each.fire for each in await self.fires.of(name)]:
            if fire.overtaken is not None:
                told += [f"{fire.overtaken.count} overtaken"]
            told.append(f"{(fire.instant - EPOCH) / timedelta(seconds=unit_s):g} {fire.state}")
        return told

    async def sent(self, seat: str = "reader") -> int:
        backlog = await self.mail.waiting(topics.inbox(seat))
        return backlog.waiting if backlog is not None else -1

    async def last(self, name: str = "poll") -> tuple[str, str]:
        kept = await self.fires.progress(name)
        assert kept is not None and kept.progress.last is not None
        return kept.progress.last.state, kept.progress.last.reason
