"""The memory that a node shares with its parent: until when the node may live, and its last sign of life.

Each value is one aligned eight-byte word, stored and loaded by a single machine instruction, so a reader sees an old
value or a new one and never a mixture, also when the writer is killed half way. The newest value wins; nothing queues.
"""

import mmap
import os
import sys
import tempfile
import time
from typing import Self

PAGE_ENV = "CREWLET_PAGE_FD"
"""The environment variable that tells a node the descriptor of its page."""

_SIZE = 65536  # one head, then room for a slot an attachment
_MAGIC = int.from_bytes(b"CREWLET1", "little")
_MAGIC_WORD, _GOOD_UNTIL_WORD, _BEAT_WORD = 0, 8, 16  # each on a cache line of its own
_LONG_PAST = sys.float_info.min
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NotAPage(ValueError):
    """The descriptor is not a page of this build."""


def boottime() -> float:
    """Seconds on the clock of every instant in a page; it counts time in suspend."""
    return time.clock_gettime(_CLOCK_ID)


class Page:
    """The shared words. The parent creates it and passes `fd` on; the node opens it."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd = fd
        self._memory = memory
        self._view = memoryview(memory)
        self._instants = self._view.cast("d")
        self._words = self._view.cast("Q")

    @classmethod
    def create(cls) -> Self:
        """A fresh page on which nothing is at stake. Its size cannot be changed by whoever gets the descriptor.

        Raises:
            OSError: the system is out of memory or descriptors.
        """
        fd = _anonymous_file()
        try:
            page = cls(fd, mmap.mmap(fd, _SIZE))
        except BaseException:
            os.close(fd)
            raise
        page._words[_MAGIC_WORD] = _MAGIC
        return page

    @classmethod
    def open(cls, fd: int) -> Self:
        """The page behind an inherited descriptor, which children of this process will not inherit in turn.

        Raises:
            NotAPage: there is something else behind it, or nothing.
        """
        try:
            os.set_inheritable(fd, False)
            page = cls(fd, mmap.mmap(fd, _SIZE))
        except (OSError, ValueError) as error:
            raise NotAPage(f"descriptor {fd} is not a page: {error}") from error
        if page._words[_MAGIC_WORD] != _MAGIC:
            page.close(keep_fd=True)
            raise NotAPage(f"descriptor {fd} is not a page of this build")
        return page

    def write_good_until(self, instant: float | None) -> None:
        """Store the instant (seconds of `boottime`), or None for no deadline."""
        if instant is None:
            self._instants[_GOOD_UNTIL_WORD] = 0.0
        else:
            # What is not a number must not read as "no deadline", nor may an instant of zero.
            self._instants[_GOOD_UNTIL_WORD] = instant if instant > 0.0 else _LONG_PAST

    def read_good_until(self) -> float | None:
        """The newest instant, None when nothing is at stake."""
        instant = self._instants[_GOOD_UNTIL_WORD]
        return None if instant == 0.0 else instant

    def write_beat(self, instant: float) -> None:
        """Store when the node last turned."""
        self._instants[_BEAT_WORD] = instant

    def read_beat(self) -> float:
        """When the node last said that it turned; 0 before the first time."""
        return self._instants[_BEAT_WORD]

    def close(self, *, keep_fd: bool = False) -> None:
        """Let the memory go. Harmless when repeated."""
        self._instants.release()
        self._words.release()
        self._view.release()
        self._memory.close()
        if not keep_fd and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class PageDeadline:
    """The deadline port over a page: what the node says goes to its parent at once."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @classmethod
    def open(cls, fd: int) -> Self:
        """The deadline behind an inherited descriptor.

        Raises:
            NotAPage: there is something else behind it, or nothing.
        """
        return cls(Page.open(fd))

    def good_until(self, instant: float | None) -> None:
        """The leases are good until this reading of CLOCK_BOOTTIME; None when nothing is at stake. Also a beat."""
        self._page.write_good_until(instant)
        self.beat()

    def beat(self) -> None:
        """Say that the loop turned. Without one for a while, the parent asks for stacks before the end."""
        self._page.write_beat(boottime())


def _anonymous_file() -> int:
    if sys.platform == "linux":
        import fcntl

        fd = os.memfd_create("crewlet-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _SIZE)
        # A node that shrank the file would kill its parent at the next read.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    with tempfile.TemporaryFile() as file:
        fd = os.dup(file.fileno())
    os.ftruncate(fd, _SIZE)
    return fd
