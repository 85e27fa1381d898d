"""Sleeping in one thread until a signal, or a time, whichever comes first."""

import os
import select
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalWaiter:
    """Turns signals into facts that a loop looks at. Main thread only; a context, after which all is as it was.

    SIGHUP counts as a stop unless it was ignored at the start, as `nohup` has it.
    """

    def __init__(self) -> None:
        self.stops: list[int] = []
        """Every request to stop that came, oldest first."""
        self.wants_stacks = False
        """Whether SIGUSR2 came, whose default would end this process and all below it. Put it back when it is done."""
        self._before: dict[int, Any] = {}
        self._read, self._write = -1, -1
        self._fd_before = -1

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else _pipe()
        for number in _STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                self._before[number] = signal.signal(number, self._on_stop)
        # A stopped parent keeps no deadline, so Ctrl+Z is not for it.
        for number in (signal.SIGCHLD, signal.SIGTSTP):
            self._before[number] = signal.signal(number, _nothing)
        self._before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, self._on_stacks)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal comes, at most so long. A signal that came since the last sleep ends it at once."""
        select.select([self._read], [], [], max(0.0, seconds))
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self.stops.append(number)

    def _on_stacks(self, _number: int, _frame: FrameType | None) -> None:
        self.wants_stacks = True


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler, so that the signal wakes us and does nothing else, and children still begin with the default."""


def _pipe() -> Sequence[int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
