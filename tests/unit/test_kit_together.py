"""Awaiting two things at the same time: neither is left running, and the first failure counts."""

import asyncio

import pytest

from crewlet.kit.together import side_by_side
from crewlet.testing.virtual import in_virtual_time


async def after(seconds: float, ended: list[float], *, fails: bool = False) -> float:
    try:
        await asyncio.sleep(seconds)
        if fails:
            raise ValueError(str(seconds))
        return seconds
    finally:
        ended.append(seconds)


@in_virtual_time
async def test_both_go_on_at_the_same_time() -> None:
    began, ended = asyncio.get_running_loop().time(), list[float]()
    assert await side_by_side(after(2, ended), after(3, ended)) == (2, 3)
    assert asyncio.get_running_loop().time() - began == 3


@in_virtual_time
@pytest.mark.parametrize("seconds", [(2, 3), (3, 2)])
async def test_a_failure_is_raised_once_both_have_ended_and_that_of_the_first_counts(seconds: tuple[int, int]) -> None:
    ended = list[float]()
    with pytest.raises(ValueError, match=str(seconds[0])):
        await side_by_side(after(seconds[0], ended, fails=True), after(seconds[1], ended, fails=True))
    assert sorted(ended) == [2, 3]
    with pytest.raises(ValueError, match=str(seconds[1])):
        await side_by_side(after(seconds[0], ended), after(seconds[1], ended, fails=True))
    assert len(ended) == 4


@in_virtual_time
@pytest.mark.parametrize("at_s", [1.0, 2.5])
async def test_a_cancellation_ends_both_and_is_raised_then(at_s: float) -> None:
    ended = list[float]()
    both = asyncio.create_task(side_by_side(after(2, ended), after(3, ended)))
    await asyncio.sleep(at_s)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert sorted(ended) == [2, 3]
    assert asyncio.get_running_loop().time() == at_s
