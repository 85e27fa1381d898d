"""An event loop in virtual time that several simulated processes share, each of which can freeze, thaw and die.

A callback belongs to the process whose context it was created in. A frozen process's callbacks queue up and run at the
thaw; a dead one's never run. Whatever has no process is the world: the network, the store, the feeder.
"""

# It stands in for a part of asyncio, and reaches into what it replaces.
# pyright: reportPrivateUsage=false

import asyncio
import enum
import heapq
import warnings
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

from crewlet.testing.virtual import Stuck, VirtualLoop


class State(enum.Enum):
    """What a simulated process is doing."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Process:
    """One simulated process. `name` tells incarnations apart."""

    __slots__ = ("name", "queued", "state", "thawed_at")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.queued: list[_Handle] = []
        self.thawed_at = 0.0

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING


PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


class _Soon(asyncio.Handle):
    __slots__ = ("process",)

    # Of the base class, which its stubs do not tell of.
    _cancelled: bool

    def __init__(self, callback: Callable[..., object], args: Any, loop: "SimLoop", context: Context | None) -> None:
        super().__init__(callback, args, loop, context)
        self.process = PROCESS.get() if context is None else context.get(PROCESS)


class _Timer(asyncio.TimerHandle):
    __slots__ = ("process",)

    _cancelled: bool
    _scheduled: bool

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: "SimLoop", context: Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.process = PROCESS.get() if context is None else context.get(PROCESS)


_Handle = _Soon | _Timer


class SimLoop(VirtualLoop):
    """The loop of one simulation."""

    # Of the base class, which its stubs do not tell of.
    _ready: deque[_Handle]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._serial = 0
        # Due at, serial number, timer: those due together fire in the order they were set, on every Python.
        self._timed: list[tuple[float, int, _Timer]] = []
        self._kept: list[object] = []
        self.callbacks = 0

    def freeze(self, process: Process) -> None:
        """Stop a running process where it stands."""
        if process.state is State.RUNNING:
            process.state = State.FROZEN

    def thaw(self, process: Process, *, timers_first: bool) -> None:
        """Let a frozen process go on: what became due meanwhile runs now.

        Args:
            timers_first: whether its timers run before the answers that arrived, or after them.
        """
        if process.state is not State.FROZEN:
            return
        process.state, process.thawed_at = State.RUNNING, self.time()
        queued, process.queued = process.queued, []
        queued.sort(key=lambda handle: isinstance(handle, _Timer) is not timers_first)
        self._ready.extend(queued)

    def kill(self, process: Process) -> None:
        """End a process between two steps: not even its `finally` blocks run.

        Its tasks are kept until the simulation ends, since collecting one would run them.
        """
        process.state = State.DEAD
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

    # What follows takes the place of the base class's own, on every supported Python.

    def _call_soon(self, callback: Callable[..., object], args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timed, (when, self._serial, timer))
        timer._scheduled = True
        return timer

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers()
        if not ready and not self._stopping:
            if not timers:
                raise Stuck("every task waits and no timer is set")
            self._virtual_s = max(self._virtual_s, timers[0][0])
        now = self._virtual_s
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle.process
            if process is None or process.state is State.RUNNING:
                self.callbacks += 1
                handle._run()
            elif process.state is State.FROZEN:
                process.queued.append(handle)

    def _timers(self) -> list[tuple[float, int, _Timer]]:
        """The heap of timers, without cancelled ones at its head or too many below."""
        timers = self._timed
        if len(timers) > 500 and self._timer_cancelled_count > len(timers) // 2:
            for _, _, timer in timers:
                timer._scheduled = not timer._cancelled
            timers[:] = [each for each in timers if each[2]._scheduled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][2]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)[2]._scheduled = False
        return timers


def _close(coroutine: Any) -> None:
    """Unwind a coroutine, whose clean-up may want to wait and cannot: the world is gone."""
    for _ in range(100):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 -- as above
            continue
        return
