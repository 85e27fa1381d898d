"""The memory that a node shares with its parent: until when the node may live, its last sign of life, who it is, and
what it has in hand of the broker's mail.

Each value is one aligned eight-byte word, stored and loaded by a single machine instruction, so a reader sees an old
value or a new one and never a mixture, also when the writer is killed half way. What is longer than a word is written
where nobody reads yet, and one word then says where it is. The newest value wins; nothing queues.
"""

import heapq
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Self

PAGE_ENV = "CREWLET_PAGE_FD"
"""The environment variable that tells a node the descriptor of its page."""

SLOTS = 1024
"""Attachments whose deliveries the page has room for."""

# One head, then a slot an attachment. What nobody writes to costs no memory.
_SLOT_SIZE = 65536
_SIZE = _SLOT_SIZE * (1 + SLOTS)
_HALF_SIZE = (_SLOT_SIZE - 64) // 2 // 8 * 8
_MAGIC = int.from_bytes(b"CREWLET2", "little")
_MAGIC_WORD, _GOOD_UNTIL_WORD, _BEAT_WORD, _OWNER_WORD = 0, 8, 16, 24  # each on a cache line of its own
_OWNER_AT, _OWNER_SIZE = 256, 2048
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

    def write_owner(self, owner: str) -> None:
        """Store which incarnation writes here, once."""
        self._write_text(_OWNER_AT, _OWNER_SIZE, owner.encode())
        self._words[_OWNER_WORD] = len(owner.encode())

    def read_owner(self) -> str:
        """Which incarnation wrote here; empty before it said so."""
        return bytes(self._view[_OWNER_AT : _OWNER_AT + self._words[_OWNER_WORD]]).decode()

    def write_slot(self, number: int, lines: Sequence[str]) -> None:
        """Put lines in the place of a slot's former ones. Those that have no room are left out, the last ones first."""
        word = self._slot_word(number)
        side = 2 if self._words[word] == 1 else 1
        at = self._half_at(number, side)
        text = "\n".join(lines).encode()
        if len(text) > _HALF_SIZE - 8:
            text = text[: text.rfind(b"\n", 0, _HALF_SIZE - 7)]
        self._write_text(at + 8, _HALF_SIZE - 8, text)
        self._words[at // 8] = len(text)
        self._words[word] = side if text else 0

    def read_slots(self) -> list[list[str]]:
        """The lines of every slot that has any."""
        found: list[list[str]] = []
        for number in range(SLOTS):
            if (side := self._words[self._slot_word(number)]) in (1, 2):
                at = self._half_at(number, side)
                text = bytes(self._view[at + 8 : at + 8 + min(self._words[at // 8], _HALF_SIZE - 8)])
                found.append(text.decode(errors="replace").split("\n"))
        return found

    @staticmethod
    def _slot_word(number: int) -> int:
        return _SLOT_SIZE * (1 + number) // 8

    @staticmethod
    def _half_at(number: int, side: int) -> int:
        return _SLOT_SIZE * (1 + number) + 64 + (side - 1) * _HALF_SIZE

    def _write_text(self, at: int, size: int, text: bytes) -> None:
        if len(text) > size:
            raise ValueError(f"{len(text)} bytes have no room in a page")
        self._view[at : at + len(text)] = text

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
        self.page = page

    @classmethod
    def open(cls, fd: int) -> Self:
        """The deadline behind an inherited descriptor.

        Raises:
            NotAPage: there is something else behind it, or nothing.
        """
        return cls(Page.open(fd))

    def good_until(self, instant: float | None) -> None:
        """The leases are good until this reading of CLOCK_BOOTTIME; None when nothing is at stake. Also a beat."""
        self.page.write_good_until(instant)
        self.beat()

    def beat(self) -> None:
        """Say that the loop turned. Without one for a while, the parent asks for stacks before the end."""
        self.page.write_beat(boottime())


class PageSlots:
    """The port of the deliveries in hand over a page.

    Args:
        now: the clock of the instants that are written, which need not count suspend.
    """

    def __init__(self, page: Page, now: Callable[[], float]) -> None:
        self._page = page
        self._now = now
        self._free = list(range(SLOTS))

    def take(self) -> "PageSlot | None":
        """A slot for one more attachment; None when there is none left."""
        return PageSlot(self._page, heapq.heappop(self._free), self._now, self._free) if self._free else None


class PageSlot:
    """One attachment's deliveries in hand."""

    def __init__(self, page: Page, number: int, now: Callable[[], float], free: list[int]) -> None:
        self._page = page
        self._number = number
        self._now = now
        self._free: list[int] | None = free

    def write(self, in_hand: Sequence[tuple[str, float]]) -> None:
        """In hand are these now, each by what settles it, and until when a hand-back surely comes first."""
        if self._free is not None:
            ahead_s = boottime() - self._now()
            self._page.write_slot(self._number, [f"{until + ahead_s:.3f} {reply}" for reply, until in in_hand])

    def close(self) -> None:
        """Nothing is in hand, and another attachment may have the slot. Harmless when repeated."""
        if self._free is not None:
            self._page.write_slot(self._number, ())
            heapq.heappush(self._free, self._number)
            self._free = None


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
