"""The loop that several simulated processes share."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from crewlet.testing.sim.loop import PROCESS, Process, SimLoop


def _in(loop: SimLoop, process: Process, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    context = copy_context()
    context.run(PROCESS.set, process)
    return loop.create_task(work, context=context)


def _world(main: Callable[[SimLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.abandon()
        loop.close()


def test_a_frozen_process_does_nothing_and_catches_up_at_the_thaw() -> None:
    async def main(loop: SimLoop) -> None:
        process, ticks = Process("p"), list[float]()

        async def work() -> None:
            while True:
                await asyncio.sleep(1.0)
                ticks.append(loop.time())

        _in(loop, process, work())
        await asyncio.sleep(2.5)
        loop.freeze(process)
        await asyncio.sleep(10.0)
        assert ticks == [1.0, 2.0]
        loop.thaw(process, timers_first=True)
        await asyncio.sleep(1.2)
        assert ticks == [1.0, 2.0, 12.5, 13.5]

    _world(main)


def test_a_killed_process_never_runs_again_not_even_its_clean_up() -> None:
    async def main(loop: SimLoop) -> None:
        process, seen = Process("p"), list[str]()

        async def work() -> None:
            try:
                await asyncio.sleep(5.0)
                seen.append("done")
            finally:
                seen.append("clean-up")

        task = _in(loop, process, work())
        await asyncio.sleep(1.0)
        loop.kill(process)
        task.cancel()
        await asyncio.sleep(10.0)
        assert not seen

    _world(main)


@pytest.mark.parametrize("timers_first", [True, False])
def test_at_the_thaw_timers_run_before_answers_or_after_them(timers_first: bool) -> None:
    async def main(loop: SimLoop) -> None:
        process, seen = Process("p"), list[str]()
        answer: asyncio.Future[None] = loop.create_future()

        async def waits() -> None:
            await answer
            seen.append("answer")

        async def sleeps() -> None:
            loop.call_later(3.0, seen.append, "timer")

        _in(loop, process, waits())
        _in(loop, process, sleeps())
        await asyncio.sleep(1.0)
        loop.freeze(process)
        await asyncio.sleep(1.0)
        answer.set_result(None)
        await asyncio.sleep(5.0)
        loop.thaw(process, timers_first=timers_first)
        await asyncio.sleep(1.0)
        assert sorted(seen) == ["answer", "timer"]
        assert seen[0] == "timer" or not timers_first

    _world(main)


def test_timers_due_together_fire_in_the_order_they_were_set() -> None:
    async def main(loop: SimLoop) -> None:
        seen = list[int]()
        for number in range(200):
            loop.call_at(5.0, seen.append, number)
        await asyncio.sleep(6.0)
        assert seen == list(range(200))

    _world(main)


def test_a_world_that_is_abandoned_within_a_generator_ends_without_a_word() -> None:
    async def ticks() -> AsyncIterator[None]:
        while True:
            yield

    async def main(loop: SimLoop) -> None:
        process = Process("p")

        async def work() -> None:
            async for _ in ticks():
                await asyncio.sleep(1.0)

        _in(loop, process, work())
        await asyncio.sleep(2.5)
        loop.kill(process)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _world(main)
    assert [str(warning.message) for warning in said] == []
