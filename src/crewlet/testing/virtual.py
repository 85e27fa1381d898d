"""Time that passes only when nothing is left to do: an event loop and a clock for tests in which hours cost nothing."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Stuck(RuntimeError):
    """Every task waits, and no timer is set: nothing would ever happen again."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer instead of waiting for it. No sockets, no threads."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_NoWait(self))
        # The loop fires what is due before now plus this; with nothing added a timer would never be due at its instant.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.now_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError("virtual time has no threads")

    def jump(self, seconds: float | None) -> None:
        """Go to the next timer, for a selector that was asked to wait `seconds` (None: for ever)."""
        if seconds is None:
            raise Stuck("every task waits and no timer is set")
        if seconds > 0:
            # The heap of timers is the loop's own; its head is what the loop computed the wait from.
            scheduled = cast("list[asyncio.TimerHandle]", getattr(self, "_scheduled"))  # noqa: B009
            self.now_s = max(self.now_s, scheduled[0].when())


class VirtualClock:
    """The clock port on virtual time.

    Args:
        rate: how fast `elapsed` runs against the loop's time; 1.01 is one per cent fast.
        offset_s: where `elapsed` starts.
    """

    def __init__(self, *, rate: float = 1.0, offset_s: float = 1000.0) -> None:
        self._rate = rate
        self._offset_s = offset_s

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.elapsed())

    def elapsed(self) -> float:
        return self._offset_s + self._rate * asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._rate)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, to its end.

    Raises:
        Stuck: nothing was left that could happen.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a coroutine function an ordinary one that runs in virtual time. For tests."""

    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return wrapped


async def until(is_so: Callable[[], bool], *, within_s: float = 60.0, step_s: float = 0.01) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come true in so many virtual seconds.
    """
    give_up_at = asyncio.get_running_loop().time() + within_s
    while not is_so():
        if asyncio.get_running_loop().time() >= give_up_at:
            raise TimeoutError(f"not so within {within_s:g} s")
        await asyncio.sleep(step_s)


async def settle(turns: int = 50) -> None:
    """Let every task that can run do so, without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)


class _NoWait(selectors.BaseSelector):
    """Sees no file ready, ever, and turns a wait into a jump."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, -1, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys
