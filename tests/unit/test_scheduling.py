"""What the scheduler fires, skips, misses and forgets, in virtual time."""

import asyncio
from datetime import timedelta

import pytest
import structlog
from scheduling_rig import HOUR, World, still

from crewlet.company.instants import Schedule
from crewlet.company.model import Company, Seat
from crewlet.duties.firing import MOST_CATCH_UP, catch_up
from crewlet.duties.scheduling import SIDE_BY_SIDE
from crewlet.mail import topics
from crewlet.mail.pauses import Wish
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault
from crewlet.testing.virtual import EPOCH, in_virtual_time


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
async def test_only_the_newest_of_those_that_went_by_is_caught_up_and_the_others_are_counted() -> None:
    world = await World().open()
    await world.scheduler().tick(still)
    await asyncio.sleep(5 * HOUR + 600)
    with structlog.testing.capture_logs() as logs:
        await world.scheduler("two:1").tick(still)
    told = {line["event"]: line for line in logs}
    assert (told["schedule_skipped_catchup"]["schedule"], told["schedule_skipped_catchup"]["instants"]) == ("poll", 4)
    assert told["scheduled_task_fired"]["seat"] == "reader"
    (event_type, about), *others = world.published
    assert (event_type, about["schedule"], about["seat"], others) == ("scheduled_task_fired", "poll", "reader", [])
    assert await world.sent() == 1
    assert await world.last() == ("fired", "caught up 600 s late")
    kept = await world.fires.progress("poll")
    assert kept is not None and kept.progress.overtaken is not None and kept.progress.overtaken.count == 4


@pytest.mark.parametrize(
    ("schedule", "caught_up"),
    [
        (Schedule("poll", "reader", "look", every_s=60), timedelta(minutes=2)),
        (Schedule("poll", "reader", "look", every_s=600), timedelta(minutes=5)),
        (Schedule("poll", "reader", "look", "0 * * * *"), timedelta(minutes=30)),
        (Schedule("poll", "reader", "look", "0 8 * * 1-5"), timedelta(hours=2)),
        (Schedule("poll", "reader", "look", "0 0 1 1 *"), timedelta(hours=2)),
    ],
)
def test_a_fire_is_caught_up_for_half_the_time_to_the_next_one_from_two_minutes_to_two_hours(
    schedule: Schedule, caught_up: timedelta
) -> None:
    instant = schedule.after(EPOCH)
    assert instant is not None and catch_up(schedule, instant) == caught_up


@in_virtual_time
async def test_a_fire_is_caught_up_for_half_its_period_and_skipped_beyond() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(1.5 * HOUR)
    await one.tick(still)
    assert await world.last() == ("fired", "caught up 1800 s late")
    await asyncio.sleep(HOUR + 1)
    await one.tick(still)
    assert await world.last() == ("skipped_catchup", "it was seen 1801 s late, and is caught up for 1800 s at most")
    assert await world.sent() == 1


@in_virtual_time
async def test_a_fire_whose_seat_may_be_paused_is_sent_where_nobody_says() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await world.pauses.pause(["reader"], Wish("p1"))
    await asyncio.sleep(HOUR)
    world.pause_cells.next("read", Fault.LOST)
    assert await one.tick(still) == "poll: fired"
    assert await world.last() == ("fired", "nobody said whether the seat was paused")
    assert await world.sent() == 1
    await asyncio.sleep(HOUR)
    assert await one.tick(still) == "poll: skipped_paused"


@in_virtual_time
async def test_a_fire_beyond_the_ceiling_is_skipped() -> None:
    world = await World().open()
    world.company = world.of(Schedule("poll", "reader", "look", every_s=100 * 3600))
    one = world.scheduler()
    await one.tick(still)
    first = world.company.schedules[0].after(world.clock.now())
    assert first is not None
    await asyncio.sleep((first - world.clock.now()).total_seconds() + MOST_CATCH_UP.total_seconds() + 60)
    await one.tick(still)
    assert await world.sent() == 0
    assert (await world.last())[0] == "skipped_catchup"


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
async def test_a_node_whose_document_never_had_schedules_forgets_those_of_the_document_before() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    await world.claim_and_die(one)
    world.company = world.of()
    two = world.scheduler("two:1")
    assert two.duty().is_wanted()
    await two.tick(still)
    assert await world.fires.progress("poll") is None and await world.history() == ["1 skipped_catchup"]
    assert not two.duty().is_wanted()


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
    world.company = world.of(Schedule("poll", "reader", "look", every_s=30))
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(2 * 30)
    await world.claim_and_die(one)
    await asyncio.sleep(3 * 30)
    await world.scheduler("two:1").tick(still)
    assert await world.history(unit_s=30) == ["1 overtaken", "2 fired", "2 overtaken", "5 fired"]
    assert await world.sent() == 2


@in_virtual_time
async def test_what_was_due_before_a_schedule_got_other_times_ends_as_skipped() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(2.5 * HOUR)
    world.company = world.of(Schedule("poll", "reader", "look", "45 * * * *"))
    await one.tick(still)
    assert await world.history() == ["1 overtaken", "2 skipped_catchup"]
    await asyncio.sleep(0.5 * HOUR)
    await one.tick(still)
    assert await world.history() == ["1 overtaken", "2 skipped_catchup", "2.75 fired"]
    assert await world.sent() == 1


@in_virtual_time
async def test_what_was_due_or_claimed_when_its_schedule_left_the_document_ends_as_skipped() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    await world.claim_and_die(one)
    await asyncio.sleep(HOUR)
    world.company = world.of()
    await one.tick(still)
    assert await world.history() == ["1 skipped_catchup", "2 skipped_catchup"]
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
async def test_a_fire_without_a_mailbox_waits_a_minute_for_it_and_then_ends_as_refused() -> None:
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
    assert state == "refused" and "its mail was refused" in reason
    for subscription in topics.mailbox("reader"):
        await world.mail.ensure_subscription(subscription)
    await one.tick(still)
    assert await world.sent() == 0 and await world.history() == ["1 refused"]


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
