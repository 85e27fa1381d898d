"""A thread that shows what holds the event loop up, while it is still held up."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager

import structlog

_log = structlog.get_logger()

BLOCKED_S = 1.0
_LOOK_EVERY_S = 0.25
_SHOWN_FRAMES = 12


@contextmanager
def loop_watched(blocked_s: float = BLOCKED_S) -> Generator[None]:
    """Log `loop_blocked`, with the stack, when the running loop has not turned for so long; once a blockage.

    Enter it on the loop's own thread.
    """
    watch = _LoopWatch(asyncio.get_running_loop(), blocked_s)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _LoopWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop, blocked_s: float) -> None:
        self._loop = loop
        self._blocked_s = blocked_s
        self._loop_thread = threading.get_ident()
        self._turned_at = time.monotonic()
        self._is_over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def start(self) -> None:
        self._turn()
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self._turned_at = time.monotonic()
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._turn)

    def _watch(self) -> None:
        told_of: float | None = None
        while not self._is_over.wait(_LOOK_EVERY_S):
            turned_at = self._turned_at
            lag_s = time.monotonic() - turned_at
            if lag_s < self._blocked_s or told_of == turned_at:
                continue
            told_of = turned_at
            frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
            stack = [] if frame is None else traceback.format_stack(frame)[-_SHOWN_FRAMES:]
            _log.warning("loop_blocked", lag_s=round(lag_s, 2), stack="".join(stack))
