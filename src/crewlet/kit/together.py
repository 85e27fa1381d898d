"""Awaiting two things at the same time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from crewlet.kit.supervise import see_through

A = TypeVar("A")
B = TypeVar("B")


async def side_by_side(one: Awaitable[A], two: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Await both at the same time, the first in this very task. A failure is raised once both have ended.

    Cancellation: cancels both, and is raised once both have ended.
    """
    other = asyncio.create_task(two)
    try:
        return await one, await other
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError):
            other.cancel()
        with contextlib.suppress(Exception):  # the first failure counts
            await see_through(other, other.cancel)
        raise
