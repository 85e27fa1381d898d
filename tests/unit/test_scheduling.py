"""The scheduler in virtual time, over cells that can fail and the mail twin."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec
import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.company.instants import Schedule
from crewlet.company.model import Company, Seat
from crewlet.duties.asking import Asking
from crewlet.duties.fires import CEILING_S, FIRES_BUCKET, Fire, Fires, Kept, Progress, mail_id
from crewlet.duties.firing import Firing
from crewlet.duties.scheduling import SIDE_BY_SIDE, Scheduler
from crewlet.mail import topics
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault, Faults, FaultyCells
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import EPOCH, VirtualClock, in_virtual_time

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

    @staticmethod
    def of(*schedules: Schedule) -> Company:
        return Company("acme", (Seat("reader"),), schedules=schedules)

    async def open(self) -> "World":
        store = LocalCells(self.clock)
        self.cells = FaultyCells(await store.open(FIRES_BUCKET), sleep=self.clock.sleep)
        self.fires = SteppedFires(self.cells)
        self.pauses = Pauses(await store.open(PAUSES_BUCKET))
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
        firing = Firing(self.fires, outbox, Asking(TTL_S, self.clock), owner=owner)
        return Scheduler(lambda: self.company, self.fires, firing, self.pauses, self.agree)

    async def agree(self) -> None:
        if self.disagreement:
            raise Unavailable(self.disagreement)

    async def history(self, name: str = "poll") -> list[str]:
        """What became of each instant, in the hours since the world began."""
        told: list[str] = []
        for fire in [each.fire for each in await self.fires.of(name)]:
            if fire.overtaken is not None:
                told += [f"{fire.overtaken.count} overtaken"]
            told.append(f"{(fire.instant - EPOCH) / timedelta(hours=1):g} {fire.state}")
        return told

    async def sent(self, seat: str = "reader") -> int:
        backlog = await self.mail.waiting(topics.inbox(seat))
        return backlog.waiting if backlog is not None else -1

    async def last(self, name: str = "poll") -> tuple[str, str]:
        kept = await self.fires.progress(name)
        assert kept is not None and kept.progress.last is not None
        return kept.progress.last.state, kept.progress.last.reason


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


@in_virtual_time
async def test_each_span_that_went_by_stands_with_its_first_and_last_in_the_record_of_the_instant_after_it() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    for hours in (3, 1, 2):
        await asyncio.sleep(hours * HOUR)
        await one.tick(still)
    assert await world.history() == ["2 overtaken", "3 fired", "4 fired", "1 overtaken", "6 fired"]
    passed = (await world.fires.of("poll"))[-1].fire.overtaken
    assert passed is not None and passed.first == EPOCH + timedelta(hours=5) and passed.reason


@in_virtual_time
async def test_an_instant_that_a_dead_node_had_claimed_is_fired_and_is_not_counted_among_those_that_went_by() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(2 * HOUR)
    world.cells.next("read", Fault.LOST, skip=1)
    with pytest.raises(Unavailable):
        await one.tick(still)
    await asyncio.sleep(3 * HOUR)
    await world.scheduler("two:1").tick(still)
    assert await world.history() == ["1 overtaken", "2 fired", "2 overtaken", "5 fired"]
    assert await world.sent() == 2


@in_virtual_time
async def test_what_was_due_before_a_schedule_got_other_times_ends_as_missed() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(2.5 * HOUR)
    world.company = world.of(Schedule("poll", "reader", "look", "45 * * * *"))
    await one.tick(still)
    assert await world.history() == ["1 overtaken", "2 missed"]
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.history() == ["1 overtaken", "2 missed", "2.75 fired"]
    assert await world.sent() == 1


@in_virtual_time
async def test_what_was_due_or_claimed_when_its_schedule_left_the_document_ends_as_missed() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    world.cells.next("read", Fault.LOST, skip=1)
    with pytest.raises(Unavailable):
        await one.tick(still)
    await asyncio.sleep(HOUR)
    world.company = world.of()
    await one.tick(still)
    assert await world.history() == ["1 missed", "2 missed"]
    assert "its mail may be out" in (await world.fires.of("poll"))[0].fire.reason
    assert await world.sent() == 0


@in_virtual_time
async def test_while_a_live_node_has_other_schedules_those_of_the_other_document_are_left_as_they_are() -> None:
    world = await World().open()
    other = Schedule("other", "reader", "look", every_s=3600)
    moved = Schedule("moved", "reader", "look", every_s=3600)
    newer, older = (
        world.of(other, moved),
        world.of(Schedule("poll", "reader", "look", every_s=3600), Schedule("moved", "reader", "look", "30 * * * *")),
    )
    world.company = newer
    two = world.scheduler("two:1")
    await two.tick(still)
    world.company, world.disagreement = older, "node two has another list of schedules"
    one = world.scheduler("one:1")
    for _ in range(2):
        with pytest.raises(Unavailable, match="moved, other: node two has another list of schedules"):
            await one.tick(still)
        await asyncio.sleep(1.5 * HOUR)
    assert await world.history("poll") == ["1 fired"]
    assert await world.history("moved") == await world.history("other") == []
    world.company, world.disagreement = newer, ""
    await two.tick(still)
    assert await world.history("moved") == await world.history("other") == ["2 overtaken", "3 fired"]


@in_virtual_time
async def test_a_document_without_schedules_forgets_them_once_all_nodes_have_it() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    world.company, world.disagreement = world.of(), "node two has another list of schedules"
    for _ in range(2):
        with pytest.raises(Unavailable, match="poll: node two"):
            await one.tick(still)
    assert one.duty().is_wanted()
    world.disagreement = ""
    await one.tick(still)
    assert await world.fires.progress("poll") is None and not one.duty().is_wanted()


@in_virtual_time
async def test_a_fire_without_a_mailbox_waits_a_minute_for_it_and_then_ends_as_missed() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    for subscription in topics.mailbox("reader"):
        await world.mail.delete_subscription(subscription)
    await asyncio.sleep(HOUR)
    for _ in range(3):
        with pytest.raises(Unavailable, match="poll: not sent yet"):
            await one.tick(still)
        await asyncio.sleep(15)
    await asyncio.sleep(20)
    await one.tick(still)
    state, reason = await world.last()
    assert state == "missed" and "its mail was refused" in reason
    for subscription in topics.mailbox("reader"):
        await world.mail.ensure_subscription(subscription)
    await one.tick(still)
    assert await world.sent() == 0 and await world.history() == ["1 missed"]


@in_virtual_time
async def test_a_claimed_fire_goes_to_the_seat_for_which_it_was_claimed() -> None:
    world = await World().open()
    world.company = Company("acme", (Seat("reader"), Seat("writer")), schedules=world.company.schedules)
    for subscription in topics.mailbox("writer"):
        await world.mail.ensure_subscription(subscription)
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    world.cells.next("replace", Fault.LOST)  # the mail is out, and nobody knows
    with pytest.raises(Unavailable):
        await one.tick(still)
    await asyncio.sleep(600)  # longer than the broker knows the mail by its id
    world.company = Company("acme", world.company.seats, schedules=(Schedule("poll", "writer", "look", every_s=3600),))
    await world.scheduler("two:1").tick(still)
    assert await world.sent("writer") == 0 and await world.history() == ["1 fired"]


@in_virtual_time
async def test_schedules_that_are_due_together_are_fired_side_by_side() -> None:
    world = await World().open()
    world.company = world.of(*(Schedule(f"s{number}", "reader", "look", every_s=3600) for number in range(200)))
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    at_once, most = 0, 0

    async def slowly(request: str) -> None:
        nonlocal at_once, most
        if request == "publish":
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            at_once -= 1

    world.on_request = slowly
    begun = world.clock.elapsed()
    await one.tick(still)
    assert await world.sent() == 200
    assert world.clock.elapsed() - begun < 20
    assert most == SIDE_BY_SIDE


@in_virtual_time
async def test_one_that_fails_does_not_keep_those_that_are_due_with_it() -> None:
    world = await World().open()
    world.company = world.of(*(Schedule(f"s{number}", "reader", "look", every_s=3600) for number in range(3)))
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    world.cells.next("create", Fault.LOST)
    with pytest.raises(Unavailable, match=r"s0: .*s1: fired; s2: fired"):
        await one.tick(still)
    assert await one.tick(still) == "s0: fired"


@in_virtual_time
async def test_a_broker_that_is_silent_to_a_mail_does_not_look_like_a_stuck_duty() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)

    async def silent(request: str) -> None:
        await asyncio.sleep(60 if request == "publish" else 0)

    world.on_request = silent
    turns = [world.clock.elapsed()]
    with pytest.raises(Unavailable, match="did not answer in time: sending the mail of poll"):
        await one.tick(lambda: turns.append(world.clock.elapsed()))
    turns.append(world.clock.elapsed())
    assert max(later - earlier for earlier, later in pairwise(turns)) <= TTL_S / 2
    world.on_request = nothing
    await one.tick(still)
    assert await world.last() == ("fired", "")


STEP_S = 2.0


async def left_behind(count: int) -> World:
    """A world in which a node that is gone had claimed so many instants, and every request takes its time."""
    world = await World().open()
    await world.scheduler().tick(still)
    for hour in range(1, count + 1):
        assert await world.fires.claim("poll", Fire(EPOCH + timedelta(hours=hour), "claimed", "", "gone:1", "reader"))
    await asyncio.sleep((count + 1) * HOUR)

    async def slowly(request: str) -> None:
        await asyncio.sleep(STEP_S if request == "publish" else 0)

    world.on_request = slowly
    world.cells.faults = Faults(delay_s=STEP_S)
    return world


@pytest.mark.parametrize("why", ["late", "other times", "other times, passed over", "left"])
def test_a_duty_that_ends_much_of_what_was_left_behind_says_so_after_each_of_it(why: str) -> None:
    @in_virtual_time
    async def case() -> None:
        world = await left_behind(20)
        one = world.scheduler()
        if why.startswith("other times"):
            world.company = world.of(Schedule("poll", "reader", "look", "45 * * * *"))
        if why == "left":
            world.company = world.of(Schedule("other", "reader", "look", every_s=3600))
        if why.endswith("passed over"):
            kept = await world.fires.progress("poll")
            assert kept is not None
            settled = msgspec.structs.replace(kept.progress, settled=world.clock.now())
            await world.fires.advance("poll", settled, kept.revision)
        turns = [world.clock.elapsed()]
        await one.tick(lambda: turns.append(world.clock.elapsed()))
        turns.append(world.clock.elapsed())
        assert turns[-1] - turns[0] > 5 * STEP_S
        assert max(later - earlier for earlier, later in pairwise(turns)) <= 2 * STEP_S
        ended = "fired" if why in {"late", "other times"} else "missed"
        assert (await world.history())[:20] == [f"{hour} {ended}" for hour in range(1, 21)]
        assert await world.sent() == {"late": 21, "other times": 20}.get(why, 0)

    case()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNANSWERED])
@pytest.mark.parametrize("why", ["late", "left"])
def test_one_of_what_was_left_behind_whose_end_nobody_confirms_costs_neither_itself_nor_those_after_it(
    fault: Fault, why: str
) -> None:
    @in_virtual_time
    async def case() -> None:
        world = await left_behind(8)
        one = world.scheduler()
        if why == "left":
            world.company = world.of(Schedule("other", "reader", "look", every_s=3600))
        world.cells.next("replace", fault, skip=3)
        with pytest.raises(Unavailable, match=r"nobody said whether the end of .* of poll is recorded"):
            await one.tick(still)
        await one.tick(still)
        ended, mails = ("fired", 9) if why == "late" else ("missed", 0)
        assert (await world.history())[:8] == [f"{hour} {ended}" for hour in range(1, 9)]
        assert await world.sent() == mails

    case()


@pytest.mark.parametrize("hours", [1, -1])
@in_virtual_time
async def test_a_clock_that_is_set_by_an_hour_while_the_scheduler_runs_fires_nothing_twice(hours: int) -> None:
    world = await World().open()
    world.company = world.of(
        Schedule("poll", "reader", "look", every_s=600), Schedule("cron", "reader", "look", "*/10 * * * *")
    )
    one = world.scheduler()

    async def minutes(count: int) -> None:
        for _ in range(count):
            await one.tick(still)
            await asyncio.sleep(60)

    await minutes(125)
    world.fires.step = timedelta(hours=hours)
    await minutes(125)
    await one.tick(still)
    for name in ("poll", "cron"):
        states = [each.fire.state for each in await world.fires.of(name)]
        until = (await world.fires.now() - EPOCH) // timedelta(minutes=10)
        gone = sum(each.fire.overtaken.count for each in await world.fires.of(name) if each.fire.overtaken)
        assert set(states) == {"fired"} and len(states) + gone == until
        assert gone == (5 if hours > 0 else 0)
    assert await world.sent() == sum([len(await world.fires.of(name)) for name in ("poll", "cron")])


@in_virtual_time
async def test_a_clock_that_is_set_back_by_days_silences_a_schedule_for_a_day_at_most() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    world.fires.step = timedelta(days=10)
    await one.tick(still)
    world.fires.step = timedelta(0)
    await one.tick(still)
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert "1 fired" in await world.history()


@in_virtual_time
async def test_a_node_that_froze_before_its_claim_does_not_fire_what_another_has_gone_past() -> None:
    world = await World().open()
    one, two = world.scheduler("one:1"), world.scheduler("two:1")
    await one.tick(still)
    await two.tick(still)
    await asyncio.sleep(HOUR)
    frozen = asyncio.Event()
    claim = world.fires.claim

    async def claims_late(name: str, fire: Fire) -> bool:
        if fire.by == "one:1":
            await frozen.wait()
        return await claim(name, fire)

    world.fires.claim = claims_late
    late = asyncio.create_task(one.tick(still))
    await asyncio.sleep(HOUR)
    await two.tick(still)
    frozen.set()
    with pytest.raises(Unavailable):
        await late
    assert await world.history() == ["1 missed", "1 overtaken", "2 fired"]
    assert await world.sent() == 1


@in_virtual_time
async def test_other_times_that_come_while_a_clock_is_set_back_fire_nothing_of_what_was_dealt_with() -> None:
    world = await World().open()
    world.company = world.of(Schedule("poll", "reader", "look", every_s=600))
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(2 * HOUR)
    await one.tick(still)
    world.fires.step = timedelta(hours=-1)
    world.company = world.of(Schedule("poll", "reader", "look", "*/5 * * * *"))
    for _ in range(61):
        await one.tick(still)
        await asyncio.sleep(60)
    assert await world.history() == ["11 overtaken", "2 fired"]
    await asyncio.sleep(240)
    await one.tick(still)
    assert (await world.history())[2:] == ["2.08333 fired"]


@in_virtual_time
async def test_a_tick_that_is_cut_short_while_it_takes_a_document_in_leaves_no_schedule_out() -> None:
    world = await World().open()
    names = [f"s{number}" for number in range(100)]
    world.company = world.of(*(Schedule(name, "reader", "look", every_s=3600) for name in names))
    one = world.scheduler()
    advance = world.fires.advance

    async def slowly(name: str, progress: Progress, expect: int | None) -> Kept | None:
        await asyncio.sleep(1)
        return await advance(name, progress, expect)

    world.fires.advance = slowly
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await one.tick(still)
    assert 0 < len(await world.fires.all()) < 100
    world.fires.advance = advance
    await one.tick(still)
    assert set(await world.fires.all()) == set(names)
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.sent() == 100


@in_virtual_time
async def test_a_schedule_that_cannot_be_forgotten_at_once_is_forgotten_later_and_not_caught_up_later() -> None:
    world = await World().open()
    one, before = world.scheduler(), world.company
    await one.tick(still)
    world.company = world.of()

    async def overtaken(name: str, expect: int) -> bool:
        kept = await world.fires.progress("poll")
        assert kept is not None
        await world.fires.advance("poll", kept.progress, kept.revision)  # by another node, that has not heard yet
        world.fires.forget = forget
        return await forget(name, expect)

    forget, world.fires.forget = world.fires.forget, overtaken
    with pytest.raises(Unavailable, match="poll"):
        await one.tick(still)
    await one.tick(still)
    assert await world.fires.progress("poll") is None
    await asyncio.sleep(HOUR)
    world.company = before
    await one.tick(still)
    assert await world.sent() == 0


@in_virtual_time
async def test_a_node_that_froze_before_its_claim_does_not_fire_what_was_forgotten_as_missed() -> None:
    world = await World().open()
    one, two, before = world.scheduler("one:1"), world.scheduler("two:1"), world.company
    await one.tick(still)
    await two.tick(still)
    await asyncio.sleep(HOUR)
    frozen = asyncio.Event()
    claim = world.fires.claim

    async def claims_late(name: str, fire: Fire) -> bool:
        if fire.by == "one:1":
            await frozen.wait()
        return await claim(name, fire)

    world.fires.claim = claims_late
    late = asyncio.create_task(one.tick(still))
    await asyncio.sleep(HOUR)
    world.company = world.of()
    await two.tick(still)
    world.company = before
    frozen.set()
    with pytest.raises(Unavailable):
        await late
    assert await world.history() == ["1 missed", "1 overtaken", "2 missed"]
    assert await world.sent() == 0
