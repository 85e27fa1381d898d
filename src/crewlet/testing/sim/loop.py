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
        self.queued: list[_Handle] = []
        self.thawed_at = 0.0

    def turn(self, state: State) -> None:
        self.state, self.is_running = state, state is State.RUNNING


_FEW = 1000
"""So many timers are kept, cancelled or not, before those that were cancelled are swept out."""

PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


class _Handle(list[Any]):
    """A callback: what to call (None: it was cancelled), with what, in which context, of which process.

    A list, since making handles is half of a loop's work and this one is made without any bytecode.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[:2] = None, ()


class _Timer(_Handle):
    """One that is due later."""

    __slots__ = ()


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


_NOWHERE = Context()
"""Where the timer of a sleeper runs that cannot be woken at once. What it wakes has a context of its own."""


class SimLoop(VirtualLoop):
    """The loop of one simulation."""

    # Of the base class, which its stubs do not tell of.
    _ready: deque[_Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        # As the base class's own, without a frame of Python. Every future and task asks whether it is to be debugged.
        setattr(self, "create_future", partial(asyncio.Future, loop=self))  # noqa: B010
        setattr(self, "get_debug", bool)  # noqa: B010
        self._serial = 0
        # Due at, serial number, timer: those due together fire in the order they were set, on every Python.
        self._timed: list[tuple[float, int, _Timer]] = []
        self._crowded = _FEW
        self._kept: list[object] = []
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
        self._kept.append(asyncio.all_tasks(self))

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
        self._ready.clear()
        self._kept.clear()

    def sleep(self, seconds: float) -> "asyncio.Future[None]":
        """As `asyncio.sleep`, in one callback instead of two. It may be ended before its time."""
        sleeper: asyncio.Future[None] = self.create_future()
        self._serial += 1
        timer = _Timer((_wake, (sleeper,), _NOWHERE, PROCESS.get()))
        heappush(self._timed, (self.now_s + seconds, self._serial, timer))
        return sleeper

    # What follows takes the place of the base class's own, on every supported Python.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        if context is None:
            handle = _Handle((callback, args, copy_context(), PROCESS.get()))
        else:
            handle = _Handle((callback, args, context, context.get(PROCESS)))
        self._ready.append(handle)
        return handle

    def call_in(self, world: Context, when: float, callback: Callable[..., object], *args: Any) -> None:
        """As `call_at`, of what belongs to no process."""
        self._serial += 1
        heappush(self._timed, (when, self._serial, _Timer((callback, args, world, None))))

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
                if timers and timers[0][2][0] is not None and len(timers) <= self._crowded:
                    if timers[0][0] > self.now_s:
                        self.now_s = timers[0][0]
                else:
                    self._jump()
            now = self.now_s
            while timers and timers[0][0] <= now:
                timer = heappop(timers)[2]
                if timer[0] is _wake and ((process := timer[3]) is None or process.is_running):
                    _wake(*timer[1])
                else:
                    ready.append(timer)
            # What these bring about has its turn after the timers that are due by then.
            for _ in range(len(ready)):
                handle = ready.popleft()
                callback, args, context, process = handle
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
            timers[:] = [each for each in timers if not _is_over(each[2])]
            heapify(timers)
            self._crowded = max(_FEW, 2 * len(timers))
        while timers and _is_over(timers[0][2]):
            heappop(timers)
        if not timers:
            raise Stuck("every task waits and no timer is set")
        self.now_s = max(self.now_s, timers[0][0])


def _is_over(timer: _Timer) -> bool:
    """Whether nobody waits for it any more."""
    callback = timer[0]
    return callback is None or (callback is _wake and timer[1][0].done())


def _close(coroutine: Any) -> None:
    """Unwind a coroutine, whose clean-up may want to wait and cannot: the world is gone."""
    for _ in range(100):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 -- as above
            continue
        return
