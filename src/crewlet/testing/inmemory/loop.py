"""The event loop of a company in memory: virtual time, and the user's code in its own surroundings."""

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar

from crewlet.testing.inmemory.surroundings import Surroundings
from crewlet.testing.sim.loop import PROCESS, Process, SimLoop

T = TypeVar("T")


class UserProcess(Process):
    """The simulated process in which a seat's function runs.

    Attributes:
        tasks: those that it started and that have not ended.
    """

    __slots__ = ("surroundings", "tasks")

    def __init__(self, name: str, surroundings: Surroundings) -> None:
        super().__init__(name)
        self.surroundings = surroundings
        self.tasks: set[asyncio.Task[Any]] = set()


class CompanyLoop(SimLoop):
    """A simulation's loop for code that was written for a real one."""

    _is_over = False

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: Any = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self._is_over:
            coro.close()
            raise RuntimeError("this company is closed")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if not isinstance(process, UserProcess):
            return super().create_task(coro, name=name, context=context)
        task = super().create_task(_Surrounded(coro, process.surroundings), name=name, context=context)
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
        return task

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        # One thread at a time runs here, and none while the loop does.
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run it here and now: virtual time stands still meanwhile."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 -- it is the caller's
            done.set_exception(error)
        return done

    def abandon(self) -> None:
        self._is_over = True
        # What unwinds asks for the running loop, and must not find or make another.
        outer = events._get_running_loop()  # pyright: ignore[reportPrivateUsage]
        events._set_running_loop(self)
        try:
            super().abandon()
        finally:
            events._set_running_loop(outer)


class _Surrounded(Coroutine[Any, Any, T]):
    """A coroutine each of whose steps runs in surroundings of its own."""

    def __init__(self, inner: Generator[Any, None, T] | Coroutine[Any, Any, T], surroundings: Surroundings) -> None:
        self._inner = inner
        self._surroundings = surroundings

    def send(self, value: Any) -> Any:
        with self._surroundings:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._surroundings:
            return self._inner.throw(*error)

    def close(self) -> None:
        with self._surroundings:
            self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("this is run as a task")
