"""An event loop in virtual time that several simulated processes share, each of which can freeze, thaw and die.

A callback belongs to the process whose context it was created in. A frozen process's callbacks queue up and run at the
thaw; a dead one's never run. Whatever has no process is the world: the network, the store, the feeder.
"""

# It stands in for a part of asyncio, and reaches into what it replaces.
# pyright: reportPrivateUsage=false

import asyncio
import enum
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from crewlet.testing.virtual import Stuck, VirtualLoop

T = TypeVar("T")


class State(enum.Enum):
    """What a simulated process is doing."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Process:
    """One simulated process. `name` tells incarnations apart."""

    __slots__ = ("is_running", "name", "queued", "state", "thawed_at")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.is_running = True
        self.queued: list[_Callback] = []
        self.thawed_at = 0.0

    def turn(self, state: State) -> None:
        self.state, self.is_running = state, state is State.RUNNING


_FEW = 200
"""So many timers are kept, cancelled or not, before those that were cancelled are swept out."""

PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


class _Handle(list[Any]):
    """A callback: what to call (None: it was cancelled), with what, in which context, of which process.

    A list, since making handles is half of a loop's work and this one is made without any bytecode. What nobody can
    cancel is a plain tuple of the same.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[:2] = None, ()


class _Timer(_Handle):
    """One that is due later."""

    __slots__ = ()


_Callback = _Handle | tuple[Callable[..., object], tuple[Any, ...], Context, Process | None]


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


_Due = tuple[float, int, _Callback]
_Sleeping = tuple[float, int, None, "asyncio.Future[None]", Process | None]

_NOWHERE = Context()
"""Where the timer of a sleeper runs that cannot be woken at once. What it wakes has a context of its own."""


class SimLoop(VirtualLoop):
    """The loop of one simulation."""

    # Of the base class, which its stubs do not tell of.
    _ready: deque[_Callback]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        # As the base class's own, without a frame of Python. Every future and task asks whether it is to be debugged.
        setattr(self, "create_future", partial(asyncio.Future, loop=self))  # noqa: B010
        setattr(self, "get_debug", bool)  # noqa: B010
        self._serial = 0
        # Due at, serial number: those due together fire in the order they were set, on every Python. Then the timer; of
        # a sleeper None, itself and its process.
        self._timed: list[_Due | _Sleeping] = []
        self._crowded = _FEW
        self._kept: list[object] = []
        self._kept_tasks: set[asyncio.Task[Any]] = set()
        self.callbacks = 0

    def freeze(self, process: Process) -> None:
        """Stop a running process where it stands."""
        if process.is_running:
            process.turn(State.FROZEN)

    def thaw(self, process: Process, *, timers_first: bool) -> None:
        """Let a frozen process go on: what became due meanwhile runs now.

        Args:
            timers_first: whether its timers run before the answers that arrived, or after them.
        """
        if process.state is not State.FROZEN:
            return
        process.turn(State.RUNNING)
        process.thawed_at = self.time()
        queued, process.queued = process.queued, []
        queued.sort(key=lambda handle: isinstance(handle, _Timer) is not timers_first)
        self._ready.extend(queued)

    def kill(self, process: Process) -> None:
        """End a process between two steps: not even its `finally` blocks run.

        Its tasks are kept until the simulation ends, since collecting one would run them.
        """
        process.turn(State.DEAD)
        self._kept.append(process.queued)
        process.queued = []
        # What has ended since is kept no longer.
        self._kept_tasks = {task for task in self._kept_tasks if not task.done()} | asyncio.all_tasks(self)

    def abandon(self) -> None:
        """Throw away every task that is left, whatever its clean-up says. The loop cannot be used afterwards."""
        tasks = asyncio.all_tasks(self)
        self._ready.clear()
        self._timed.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in tasks:
                setattr(task, "_log_destroy_pending", False)  # noqa: B010
                _close(task.get_coro())
            # What unwound has asked for the ends of its generators, which nobody begins any more.
            self._ready.clear()
            self._kept.clear()
            self._kept_tasks.clear()

    def sleep(self, seconds: float) -> "asyncio.Future[None]":
        """As `asyncio.sleep`, in one callback instead of two. It may be ended before its time."""
        sleeper: asyncio.Future[None] = self.create_future()
        self._serial += 1
        heappush(self._timed, (self.now_s + seconds, self._serial, None, sleeper, PROCESS.get()))
        return sleeper

    # What follows takes the place of the base class's own, on every supported Python.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        if context is None:
            handle = _Handle((callback, args, copy_context(), PROCESS.get()))
            self._ready.append(handle)
            return handle
        # Of a future or a task, which has no use for a handle.
        self._ready.append((callback, args, context, context.get(PROCESS)))
        return None

    def call_in(self, world: Context, when: float, callback: Callable[..., object], *args: Any) -> None:
        """As `call_at`, of what belongs to no process."""
        self._serial += 1
        heappush(self._timed, (when, self._serial, (callback, args, world, None)))

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        if context is None:
            timer = _Timer((callback, args, copy_context(), PROCESS.get()))
        else:
            timer = _Timer((callback, args, context, context.get(PROCESS)))
        self._serial += 1
        heappush(self._timed, (when, self._serial, timer))
        return timer

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: Any = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def _run_once(self) -> None:
        """Run to the end: the base class calls it until the loop is stopped."""
        ready, timers = self._ready, self._timed
        callbacks = 0
        while not self._stopping:
            if not ready:
                self._jump()
            now = self.now_s
            while timers and timers[0][0] <= now:
                due = heappop(timers)
                if due[2] is not None:
                    ready.append(due[2])
                    continue
                sleeper, process = due[3:]
                if process is None or process.is_running:
                    if not sleeper.done():
                        sleeper.set_result(None)
                else:
                    ready.append(_Timer((_wake, (sleeper,), _NOWHERE, process)))
            # What these bring about has its turn after the timers that are due by then.
            for _ in range(len(ready)):
                callback, args, context, process = handle = ready.popleft()
                if callback is None:
                    continue
                if process is None or process.is_running:
                    callbacks += 1
                    try:
                        context.run(callback, *args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 -- as the base class does
                        self.call_exception_handler({"message": f"a callback broke: {callback!r}", "exception": error})
                elif process.state is State.FROZEN:
                    process.queued.append(handle)
        self.callbacks += callbacks

    def _jump(self) -> None:
        """Go to the next timer that was not cancelled."""
        timers = self._timed
        if len(timers) > self._crowded:
            timers[:] = [each for each in timers if not _is_over(each)]
            heapify(timers)
            self._crowded = max(_FEW, 2 * len(timers))
        while timers:
            due = timers[0]
            if due[3].done() if due[2] is None else due[2][0] is None:
                heappop(timers)
                continue
            if due[0] > self.now_s:
                self.now_s = due[0]
            return
        raise Stuck("every task waits and no timer is set")


def _is_over(due: _Due | _Sleeping) -> bool:
    """Whether nobody waits for it any more."""
    return due[3].done() if due[2] is None else due[2][0] is None


def _close(coroutine: Any) -> None:
    """Unwind a coroutine, whose clean-up may want to wait and cannot: the world is gone."""
    for _ in range(100):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 -- as above
            continue
        return
