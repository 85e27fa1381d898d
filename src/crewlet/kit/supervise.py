"""Background tasks that are referenced, named, never die in silence, and stop in a declared order."""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

_log = structlog.get_logger()


class _Kind(enum.Enum):
    ENDS = enum.auto()
    ETERNAL = enum.auto()
    JOINED = enum.auto()


class Tasks:
    """The tasks of one owner. Whatever breaks unseen is logged as `task_broke`; nothing is restarted."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: dict[asyncio.Future[Any], _Kind] = {}

    def start(self, work: Coroutine[Any, Any, T], name: str, *, is_joined: bool = False) -> asyncio.Task[T]:
        """Run work that ends by itself.

        Args:
            is_joined: the caller takes its outcome, also when that is an error.
        """
        return self._start(work, name, _Kind.JOINED if is_joined else _Kind.ENDS)

    def start_eternal(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run work that never ends by itself: an early end is an error too."""
        return self._start(work, name, _Kind.ETERNAL)

    async def within(
        self, work: Coroutine[Any, Any, T], seconds: float, sleep: Callable[[float], Awaitable[None]], name: str
    ) -> T:
        """Run work for at most so long, by the given clock's sleep.

        Raises:
            TimeoutError: it took longer, or all is being stopped. The work was cancelled, and is not waited for.

        Cancellation: cancels the work.
        """
        task, timer = self.start(work, name, is_joined=True), asyncio.ensure_future(sleep(seconds))
        self._tasks[timer] = _Kind.JOINED  # the newest, so that a stop ends the wait before it ends the work
        is_either_done = asyncio.get_running_loop().create_future()

        def one_is_done(_: asyncio.Future[Any]) -> None:
            if not is_either_done.done():
                is_either_done.set_result(None)

        task.add_done_callback(one_is_done)
        timer.add_done_callback(one_is_done)
        try:
            await is_either_done
            if not task.done():
                raise TimeoutError(f"{name} took longer than {seconds:g} s")
            return task.result()
        finally:
            if not task.done():
                self._tasks[task] = _Kind.ENDS  # nobody takes its outcome any more
            task.cancel()
            del self._tasks[timer]
            timer.remove_done_callback(one_is_done)
            timer.cancel()

    async def stop(self) -> None:
        """Cancel what still runs, newest first, each seen to end before the next.

        Cancellation: the rest is cancelled, and not waited for.
        """
        current = asyncio.current_task()
        pending = [task for task in reversed(self._tasks) if task is not current]
        try:
            for task in pending:
                task.cancel()
                await asyncio.wait([task])
        finally:
            for task in pending:
                task.cancel()

    def _start(self, work: Coroutine[Any, Any, T], name: str, kind: _Kind) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._tasks[task] = kind
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        kind = self._tasks.pop(task, _Kind.ENDS)
        if task.cancelled() or kind is _Kind.JOINED:
            return
        error = task.exception()
        if error is not None:
            _log.error("task_broke", task=task.get_name(), exc_info=error)
        elif kind is _Kind.ETERNAL:
            _log.error("task_ended_early", task=task.get_name())


async def see_through(task: asyncio.Future[T], on_cancel: Callable[[], object] | None = None) -> T:
    """Wait for a task to end, whatever happens to the caller.

    Cancellation: `on_cancel` is called each time; the wait goes on until the task has ended, and the cancellation is
    raised then.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        raise cancelled
    return task.result()
