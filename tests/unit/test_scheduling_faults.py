"""The scheduler where nodes die, freeze or are cut short, the store and the broker are silent, and clocks are set."""

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest
from scheduling_rig import HOUR, TTL_S, World, nothing, still
from structlog.testing import capture_logs

from crewlet.company.instants import Schedule
from crewlet.duties.fires import Fire, Kept, Progress, mail_id
from crewlet.mail import topics
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault, Faults
from crewlet.testing.virtual import EPOCH, in_virtual_time


@in_virtual_time
async def test_a_crash_between_claim_and_mail_is_repaired_by_the_next_tick_of_a_peer() -> None:
    world = await World().open()
    world.company = world.of(Schedule("poll", "reader", "look", every_s=60))
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(60)
    await world.claim_and_die(one)
    assert await world.sent() == 0
    await asyncio.sleep(60)  # also when a later one is due by then
    await world.scheduler("two:1").tick(still)
    assert await world.sent() == 2


@in_virtual_time
async def test_a_claim_of_a_dead_node_that_is_seen_too_late_sends_nothing_any_more() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    await world.claim_and_die(one)
    await asyncio.sleep(0.5 * HOUR + 1)
    await world.scheduler("two:1").tick(still)
    state, reason = await world.last()
    assert state == "skipped_catchup" and "its mail may be out" in reason
    assert await world.sent() == 0


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


@pytest.mark.parametrize("first", [True, False])
@in_virtual_time
async def test_a_store_that_answers_slowly_does_not_look_like_a_stuck_duty(first: bool) -> None:
    world = await World().open()
    one = world.scheduler()
    if not first:
        await one.tick(still)
        await asyncio.sleep(HOUR)
    slow_s = TTL_S / 2 - 0.1
    world.cells.faults = world.pause_cells.faults = Faults(delay_s=slow_s)
    turns = [world.clock.elapsed()]
    await one.tick(lambda: turns.append(world.clock.elapsed()))
    turns.append(world.clock.elapsed())
    assert max(later - earlier for earlier, later in pairwise(turns)) <= slow_s
    world.cells.faults = world.pause_cells.faults = Faults()
    assert await world.sent() == (0 if first else 1)


@pytest.mark.parametrize("silent", ["fires", "pauses"])
@in_virtual_time
async def test_a_store_that_is_silent_does_not_look_like_a_stuck_duty(silent: str) -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(HOUR)
    cells = world.cells if silent == "fires" else world.pause_cells
    cells.faults = Faults(delay_s=600)
    turns = [world.clock.elapsed()]
    with pytest.raises(Unavailable, match="did not answer in time") if silent == "fires" else nullcontext():
        await one.tick(lambda: turns.append(world.clock.elapsed()))
    turns.append(world.clock.elapsed())
    assert max(later - earlier for earlier, later in pairwise(turns)) <= TTL_S / 2
    assert await world.sent() == (0 if silent == "fires" else 1)


STEP_S = 2.0
UNIT_S = 5


async def left_behind(count: int) -> World:
    """A world in which a node that is gone had claimed so many instants, and every request takes its time."""
    world = await World().open()
    world.company = world.of(Schedule("poll", "reader", "look", every_s=UNIT_S))
    await world.scheduler().tick(still)
    for unit in range(1, count + 1):
        instant = EPOCH + timedelta(seconds=unit * UNIT_S)
        assert await world.fires.claim("poll", Fire(instant, "claimed", "", "gone:1", "reader"))
    await asyncio.sleep((count + 1) * UNIT_S)

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
        ended = "fired" if why in {"late", "other times"} else "skipped_catchup"
        assert (await world.history(unit_s=UNIT_S))[:20] == [f"{unit} {ended}" for unit in range(1, 21)]
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
        ended, mails = ("fired", 9) if why == "late" else ("skipped_catchup", 0)
        assert (await world.history(unit_s=UNIT_S))[:8] == [f"{unit} {ended}" for unit in range(1, 9)]
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


def freeze_before_claims(world: World, owner: str) -> asyncio.Event:
    """Have a node stand still before each claim, until the event is set."""
    thawed = asyncio.Event()
    claim = world.fires.claim

    async def claims_late(name: str, fire: Fire) -> bool:
        if fire.by == owner:
            await thawed.wait()
        return await claim(name, fire)

    world.fires.claim = claims_late
    return thawed


@in_virtual_time
async def test_a_node_that_froze_before_its_claim_does_not_fire_what_another_has_gone_past() -> None:
    world = await World().open()
    one, two = world.scheduler("one:1"), world.scheduler("two:1")
    await one.tick(still)
    await two.tick(still)
    await asyncio.sleep(HOUR)
    thawed = freeze_before_claims(world, "one:1")
    late = asyncio.create_task(one.tick(still))
    await asyncio.sleep(HOUR)
    await two.tick(still)
    thawed.set()
    with pytest.raises(Unavailable):
        await late
    assert await world.history() == ["1 skipped_catchup", "1 overtaken", "2 fired"]
    assert await world.sent() == 1


@in_virtual_time
async def test_a_late_claim_of_a_node_that_then_dies_is_ended_when_the_schedule_is_due_again() -> None:
    world = await World().open()
    one = world.scheduler()
    await one.tick(still)
    await asyncio.sleep(2 * HOUR)
    await one.tick(still)
    assert await world.history() == ["1 overtaken", "2 fired"]
    assert await world.fires.claim("poll", Fire(EPOCH + timedelta(hours=1), "claimed", "", "gone:1", "reader"))
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert await world.history() == ["1 skipped_catchup", "1 overtaken", "2 fired", "3 fired"]
    world.cells.calls.clear()
    await asyncio.sleep(HOUR)
    await one.tick(still)
    assert "list" not in {call.verb for call in world.cells.calls} and await world.sent() == 3


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
async def test_a_node_that_froze_before_its_claim_does_not_fire_what_was_forgotten_as_skipped() -> None:
    world = await World().open()
    one, two, before = world.scheduler("one:1"), world.scheduler("two:1"), world.company
    await one.tick(still)
    await two.tick(still)
    await asyncio.sleep(HOUR)
    thawed = freeze_before_claims(world, "one:1")
    late = asyncio.create_task(one.tick(still))
    await asyncio.sleep(HOUR)
    world.company = world.of()
    await two.tick(still)
    world.company = before
    thawed.set()
    with pytest.raises(Unavailable):
        await late
    assert await world.history() == ["1 skipped_catchup", "1 overtaken", "2 skipped_catchup"]
    assert await world.sent() == 0


@pytest.mark.parametrize(
    "value",
    [b"[" * 100_000, b"\xff", b"{}", b'{"settled":"2026-12-01T00:00:00"}'],
    ids=["deep", "no_text", "empty", "naive"],
)
def test_a_record_that_cannot_be_read_is_named_and_kept_and_keeps_no_other_schedule_from_firing(value: bytes) -> None:
    @in_virtual_time
    async def case() -> None:
        world = await World().open()
        broken = Schedule("broken", "reader", "look", every_s=3600)
        world.company = world.of(Schedule("poll", "reader", "look", every_s=3600), broken)
        for name in ("broken", "left"):
            await world.cells.create(f"seen.{name}", value)
        one = world.scheduler()
        with capture_logs() as logs, pytest.raises(Unavailable, match="broken") as raised:
            await one.tick(still)
        assert "poll" not in str(raised.value) and "left" not in str(raised.value)
        named = [(each["log_level"], each["key"]) for each in logs if each["event"] == "schedule_record_unreadable"]
        assert named == [("error", "seen.broken"), ("error", "seen.left")]
        await asyncio.sleep(HOUR)
        with pytest.raises(Unavailable, match="broken"):
            await one.tick(still)
        assert await world.history() == ["1 fired"]
        assert await world.history("broken") == []
        assert await world.sent() == 1
        for name in ("broken", "left"):
            kept = await world.cells.read(f"seen.{name}")
            assert kept is not None and kept.value == value

    case()
