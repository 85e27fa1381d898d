"""Tasks that are never lost, latches and delays."""

import asyncio

import pytest
import structlog

from crewlet.kit.backoff import Backoff
from crewlet.kit.latch import Latch
from crewlet.kit.supervise import Tasks, see_through
from crewlet.testing.virtual import Stuck, VirtualClock, in_virtual_time, run


@in_virtual_time
async def test_a_task_that_breaks_and_a_loop_that_ends_are_logged() -> None:
    tasks = Tasks("test")

    async def breaks() -> None:
        raise ValueError("no")

    async def ends() -> None:
        return

    with structlog.testing.capture_logs() as logs:
        tasks.start(breaks(), "breaks")
        tasks.start(ends(), "ends")
        tasks.start_eternal(ends(), "loop")
        await asyncio.sleep(1)
    assert [(e["event"], e["task"]) for e in logs] == [
        ("task_broke", "test: breaks"),
        ("task_ended_early", "test: loop"),
    ]


@in_virtual_time
async def test_an_error_that_the_caller_takes_is_no_alarm_and_one_that_nobody_takes_is() -> None:
    tasks, clock = Tasks("test"), VirtualClock()

    async def refuses(after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
        finally:
            raise ValueError("no")

    with structlog.testing.capture_logs() as logs:
        with pytest.raises(ValueError):
            await tasks.within(refuses(1.0), 3.0, clock.sleep, "answers in time")
        assert not logs
        with pytest.raises(TimeoutError):
            await tasks.within(refuses(9.0), 3.0, clock.sleep, "answers too late")
        await asyncio.sleep(1)
    assert [(e["event"], e["task"]) for e in logs] == [("task_broke", "test: answers too late")]


@in_virtual_time
async def test_tasks_stop_newest_first_each_seen_to_end() -> None:
    tasks, ended = Tasks("test"), list[str]()

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append(name)

    for name in ("first", "second", "third"):
        tasks.start(work(name), name)
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended == ["third", "second", "first"]


@in_virtual_time
async def test_bounded_work_is_cancelled_at_its_bound_and_not_waited_for() -> None:
    tasks, clock = Tasks("test"), VirtualClock()

    async def clings() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(50)

    began = clock.elapsed()
    with pytest.raises(TimeoutError):
        await tasks.within(clings(), 3.0, clock.sleep, "clings")
    assert clock.elapsed() - began == pytest.approx(3.0)

    async def answers() -> int:
        await asyncio.sleep(1)
        return 7

    assert await tasks.within(answers(), 3.0, clock.sleep, "answers") == 7
    await tasks.stop()


@in_virtual_time
async def test_seeing_a_task_through_outlasts_every_cancellation_and_raises_it_then() -> None:
    done = list[str]()

    async def work() -> None:
        await asyncio.sleep(10)
        done.append("work")

    inner = asyncio.create_task(work())
    hurried = list[int]()
    outer = asyncio.create_task(see_through(inner, lambda: hurried.append(1)))
    for _ in range(3):
        await asyncio.sleep(1)
        outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert done == ["work"] and len(hurried) == 3


@in_virtual_time
async def test_a_latch_keeps_its_first_value() -> None:
    latch: Latch[str] = Latch()
    waiting = asyncio.create_task(latch.wait())
    await asyncio.sleep(1)
    assert latch.set("one") and not latch.set("two")
    assert await waiting == "one" == latch.value


def test_delays_double_up_to_the_ceiling() -> None:
    delays = Backoff(0.1, 0.5)
    assert [delays.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    delays.reset()
    assert delays.next_s() == 0.1


def test_virtual_time_jumps_exactly_and_says_when_nothing_can_happen() -> None:
    async def sleeps() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400.0)
        return asyncio.get_running_loop().time() - began

    assert run(sleeps()) == 86_400.0

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(waits())


def test_a_fast_clock_reads_more_and_sleeps_less() -> None:
    async def measure() -> tuple[float, float]:
        clock, loop = VirtualClock(rate=1.25), asyncio.get_running_loop()
        began, read = loop.time(), clock.elapsed()
        await clock.sleep(10)
        return loop.time() - began, clock.elapsed() - read

    assert run(measure()) == pytest.approx((8.0, 10.0))
