"""Awaiting several things at the same time."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")


@overload
async def side_by_side(one: Awaitable[A], two: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def side_by_side(*questions: Awaitable[A]) -> tuple[A, ...]: ...
async def side_by_side(*questions: Awaitable[Any]) -> tuple[Any, ...]:
    """Await them all at the same time. A failure is raised once all have ended; none is left running.

    Cancellation: cancels them all.
    """
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return tuple(answers)
