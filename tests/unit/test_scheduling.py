"""The scheduler in virtual time, over cells that can fail and the mail twin."""

import asyncio
from datetime import timedelta

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.company.instants import Schedule
from crewlet.company.model import Company, Seat
from crewlet.duties.fires import CEILING_S, FIRES_BUCKET, Fires, mail_id
from crewlet.duties.scheduling import Scheduler
from crewlet.mail import topics
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault, FaultyCells
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time

HOUR = 3600.0


class World:
    """One bucket, one broker, as many schedulers as a test wants."""

    def __init__(self) -> None:
        self.clock = VirtualClock(offset_s=0.0)
        self.company = self.of(Schedule("poll", "reader", "look", every_s=3600))

    @staticmethod
    def of(*schedules: Schedule) -> Company:
        return Company("acme", (Seat("reader"),), schedules=schedules)

    async def open(self) -> "World":
        store = LocalCells(self.clock)
        self.cells = FaultyCells(await store.open(FIRES_BUCKET), sleep=self.clock.sleep)
        self.fires = Fires(self.cells)
        self.pauses = Pauses(await store.open(PAUSES_BUCKET))
        self.mail = TwinMail(TwinBroker(self.clock, ack_window_s=30.0))
        await self.mail.start()
        for subscription in topics.mailbox("reader"):
            await self.mail.ensure_subscription(subscription)
        return self

    def scheduler(self, owner: str = "one:1") -> Scheduler:
        outbox = Outbox(self.mail, lambda: self.company, self.clock, owner)
        return Scheduler(lambda: self.company, self.fires, outbox, self.pauses, owner=owner)

    async def sent(self) -> int:
        backlog = await self.mail.waiting(topics.inbox("reader"))
        return backlog.waiting if backlog is not None else -1

    async def last(self, name: str = "poll") -> tuple[str, str]:
        kept = await self.fires.progress(name)
        assert kept is not None and kept.progress.last is not None
        return kept.progress.last.state, kept.progress.last.reason


def still() -> None:
    pass


@in_virtual_time
async def test_a_schedule_begins_when_it_is_first_seen_and_fires_once_though_two_schedulers_run() -> None:
    world = await World().open()
    one, two = world.scheduler("one:1"), world.scheduler("two:1")
    await asyncio.gather(one.tick(still), two.tick(still), return_exceptions=True)
    assert await world.sent() == 0
    await asyncio.sleep(HOUR)
    for _ in range(3):
        await asyncio.gather(one.tick(still), two.tick(still), return_exceptions=True)
    assert await world.sent() == 1
    assert await world.last() == ("fired", "")


@in_virtual_time
async def test_a_crash_between_claim_and_mail_is_repaired_by_the_next_tick_of_a_peer() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    world.cells.next("read", Fault.LOST, skip=1)  # the claim is written, then nothing more
    with pytest.raises(Unavailable):
        await one.tick(still)
    assert await world.sent() == 0
    await asyncio.sleep(HOUR)  # also when a later one is due by then
    await world.scheduler("two:1").tick(still)
    assert await world.sent() == 2


@pytest.mark.parametrize(("fault", "at_once"), [(Fault.UNANSWERED, 0), (Fault.LOST, 0)])
@in_virtual_time
async def test_a_claim_without_an_answer_fires_nothing_until_it_is_read(fault: Fault, at_once: int) -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    world.cells.next("create", fault)
    with pytest.raises(Unavailable, match="poll"):
        await one.tick(still)
    assert await world.sent() == at_once
    await one.tick(still)
    await one.tick(still)
    assert await world.sent() == 1


@in_virtual_time
async def test_a_lost_end_sends_the_same_mail_under_the_same_id() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    world.cells.next("replace", Fault.LOST)
    with pytest.raises(Unavailable):
        await one.tick(still)
    await one.tick(still)
    assert await world.sent() == 1
    kept = await world.fires.progress("poll")
    assert kept is not None and kept.progress.last is not None
    assert await world.mail.find(topics.inbox("reader"), mail_id("poll", kept.progress.last.instant)) is not None


@in_virtual_time
async def test_only_the_newest_of_the_missed_is_caught_up_and_the_others_are_counted() -> None:
    world = await World().open()
    await world.scheduler().tick(still)
    await asyncio.sleep(5 * HOUR + 600)
    await world.scheduler("two:1").tick(still)
    assert await world.sent() == 1
    assert await world.last() == ("fired", "caught up 600 s late")
    kept = await world.fires.progress("poll")
    assert kept is not None and kept.progress.overtaken is not None and kept.progress.overtaken.count == 4


@in_virtual_time
async def test_a_fire_beyond_the_ceiling_is_missed() -> None:
    world = await World().open()
    world.company = world.of(Schedule("poll", "reader", "look", every_s=100 * 3600))
    one = world.scheduler()
    await one.tick(still)
    first = world.company.schedules[0].after(world.clock.now())
    assert first is not None
    await asyncio.sleep((first - world.clock.now()).total_seconds() + CEILING_S + 60)
    await one.tick(still)
    assert await world.sent() == 0
    assert (await world.last())[0] == "missed"


@in_virtual_time
async def test_a_fire_of_a_paused_seat_is_skipped_and_not_sent_later() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await world.pauses.pause(["reader"], Wish("p1"))
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.last() == ("skipped_paused", "the seat reader was paused")
    await world.pauses.resume({"reader": "p1"})
    await one.tick(still)
    assert await world.sent() == 0


@in_virtual_time
async def test_what_left_the_document_is_forgotten_and_begins_anew_when_it_comes_back() -> None:
    world = await World().open()
    one, before = world.scheduler(), world.company
    await one.tick(still)
    world.company = world.of()
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.fires.progress("poll") is None
    world.company = before
    await one.tick(still)
    assert await world.sent() == 0
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.sent() == 1


@in_virtual_time
async def test_a_schedule_that_is_seldom_due_outlives_the_age_of_its_bucket() -> None:
    world = await World().open()
    world.company = world.of(Schedule("poll", "reader", "look", every_s=24 * 20 * 3600))
    one = world.scheduler()
    first = world.company.schedules[0].after(world.clock.now())
    assert first is not None
    while world.clock.now() < first + timedelta(hours=1):
        await one.tick(still)
        await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.sent() == 1


@in_virtual_time
async def test_the_duty_is_wanted_only_where_there_are_schedules_or_some_to_forget() -> None:
    world = await World().open()
    scheduler = world.scheduler()
    duty = scheduler.duty()
    assert duty.is_wanted()
    await scheduler.tick(still)
    world.company = world.of()
    assert duty.is_wanted()
    await scheduler.tick(still)
    assert not duty.is_wanted()
    assert await world.fires.progress("poll") is None
