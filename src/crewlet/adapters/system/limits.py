"""What the system allows this process."""

import asyncio
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager

import structlog

from crewlet.kit.refusal import ConfigRefused

FEWEST_FILES = 64
"""Open files that a node needs before it runs any program."""

_LOOK_EVERY_S = 1.0

_log = structlog.get_logger()


def refuse_few_files() -> None:
    """Refuse to begin where files, sockets and programs could not be opened.

    Raises:
        ConfigRefused: says how few this process may open, and where that is set.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < FEWEST_FILES:
        raise ConfigRefused(
            f"this process may open {allowed} files, and a node needs {FEWEST_FILES} and some more for each program",
            where="the limit of open files",
            remedy="raise it with `ulimit -n 1024`, or with LimitNOFILE= in the unit of a service",
        )


@contextmanager
def files_watched() -> Generator[None]:
    """Log `open_files_exhausted` when no file can be opened any more, and `open_files_available` when one can again.

    Without it a node that cannot take a connection or start a program would look idle. Enter it on the loop's thread.
    """
    watch = _FilesWatch(asyncio.get_running_loop())
    watch.look()
    try:
        yield
    finally:
        watch.stop()


class _FilesWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._is_exhausted = False

    def look(self) -> None:
        try:
            os.close(os.dup(2))
        except OSError as error:
            if not self._is_exhausted:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                _log.error("open_files_exhausted", limit=limit, error=error.strerror)
            self._is_exhausted = True
        else:
            if self._is_exhausted:
                _log.warning("open_files_available")
            self._is_exhausted = False
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self.look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
