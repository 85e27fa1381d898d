"""A plain function in a thread of its own that runs only while the loop waits for it, and the other way round.

So nothing ever runs beside anything else, and a function that waits for an answer costs no real time.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_REAL_LIMIT_S = 60.0


class Killed(BaseException):
    """The function's process is gone. Raised in what is left of it when the company is closed."""


class Lost(Exception):
    """The function neither returned nor asked for anything, for a long time."""


class Baton:
    """Who runs: the loop, or the function.

    Args:
        function: what to call.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._is_killed = False
        self.is_done = False
        self.result: object = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="crewlet-seat-function", daemon=True)
        self.thread.start()

    def step(self) -> None:
        """Let the function run until it waits for something or has ended. Called by the loop.

        Raises:
            Lost: it does neither.
        """
        self._go.release()
        if not self._back.acquire(timeout=_REAL_LIMIT_S):
            raise Lost(
                f"a plain function ran for {_REAL_LIMIT_S:g} real seconds without asking anything of its turn: does it "
                "wait for something outside the test, or for another thread of its own?"
            )

    def pause(self) -> None:
        """Let the loop run until the next `step`. Called by the function."""
        if self._is_killed:
            raise Killed
        self._back.release()
        self._go.acquire()
        if self._is_killed:
            raise Killed

    def kill(self) -> None:
        """Unwind what is left of the function. Called when nothing else runs."""
        if not self.is_done:
            self._is_killed = True
            self._go.release()
            self.thread.join(timeout=1.0)

    def _run(self) -> None:
        self._go.acquire()
        if not self._is_killed:
            try:
                self.result = self._function()
            except BaseException as error:  # noqa: BLE001 -- the user's function may raise what it likes
                self.error = error
        self.is_done = True
        self._back.release()


class BatonFuture(Future[Any]):
    """An answer whose reader hands the baton over while it waits."""

    def __init__(self, baton: Baton) -> None:
        super().__init__()
        self._baton = baton

    def result(self, timeout: float | None = None) -> Any:
        del timeout  # virtual time has its own
        if threading.current_thread() is not self._baton.thread:
            raise RuntimeError("in a company in memory a plain function asks for things in its own thread only")
        while not self.done():
            self._baton.pause()
        return super().result(0)
