"""The thread that ends a process whose loops have stopped turning. Standard library only.

Three ways out, each for what the one before cannot see:

- the watcher's own: a loop has not beaten for the threshold, so one line goes to the raw standard error and the process
  ends with exit code 75, running nothing else;
- one held interpreter lock stops the watcher too: then a timer of `faulthandler`, which needs no lock, prints all
  stacks and ends the process with exit code 1;
- a process that was frozen for longer than the threshold dies at the thaw, before it runs a line: by a timer's signal
  (SIGALRM), or by the one before with the stacks.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, Self

WEDGED = 75
"""The exit code that says so; distinct from every ordinary failure."""

_STACKS_AFTER_POLLS = 2
_DEATH_AFTER_POLLS = 4
"""Beyond the threshold, so that the watcher comes first, and the stacks of a held lock before a death without any."""


class Lag(Protocol):
    """A loop and the seconds since its last beat."""

    @property
    def name(self) -> str: ...
    @property
    def seconds(self) -> float: ...


class Watchdog:
    """Watches from `arm` to `disarm`, or as a context.

    Args:
        worst: the live loop that has not turned for longest, or None when none is live. Called on the watcher's thread.
        threshold_s: the lease TTL in force.
        poll_s: how often it looks.
        dies_at_thaw: end a process that was frozen for longer than the threshold. Off where no peer can take over.
        on_healthy: called on the watcher's thread each time that nothing was found amiss.
        leave: ends the process at once.
    """

    def __init__(
        self,
        worst: Callable[[], Lag | None],
        *,
        threshold_s: float,
        poll_s: float,
        dies_at_thaw: bool = True,
        on_healthy: Callable[[], object] = lambda: None,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._worst = worst
        self._threshold_s = threshold_s
        self._poll_s = poll_s
        self._dies_at_thaw = dies_at_thaw
        self._on_healthy = on_healthy
        self._leave = leave
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def arm(self) -> None:
        """Begin to watch. Call it on the main thread."""
        if self._thread is None:
            self._rearm()
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def disarm(self) -> None:
        """Stop watching: what a stop does may take as long as it needs. Again: nothing happens."""
        self._is_over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * self._poll_s + 1.0)
        faulthandler.cancel_dump_traceback_later()
        if self._dies_at_thaw:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def __enter__(self) -> Self:
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()

    def _watch(self) -> None:
        while not self._is_over.wait(self._poll_s):
            lag = self._worst()
            if lag is not None and lag.seconds > self._threshold_s:
                # A disarm may have come between the look and here; a stop is never cut short.
                if not self._is_over.is_set():
                    self._bark(lag)
                return
            self._rearm()
            self._on_healthy()

    def _rearm(self) -> None:
        with suppress(OSError, ValueError):  # no standard error to print on: the other two ways are left
            seconds = self._threshold_s + _STACKS_AFTER_POLLS * self._poll_s
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
        if self._dies_at_thaw:
            signal.setitimer(signal.ITIMER_REAL, self._threshold_s + _DEATH_AFTER_POLLS * self._poll_s)

    def _bark(self, lag: Lag) -> None:
        line = (
            f"crewlet node: watchdog: the {lag.name} loop has not turned for {lag.seconds:.1f} s "
            f"(limit {self._threshold_s:g} s); exiting with code {WEDGED}.\n"
        )
        # Dropped rather than waited for: whoever reads may be what is stuck.
        with suppress(OSError, ValueError):
            if select.select([], [2], [], 0)[1]:
                os.write(2, line.encode()[: select.PIPE_BUF])
        self._leave(WEDGED)
