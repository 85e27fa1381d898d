"""The marks of the programs that run, in a file, so that the next incarnation can tell what this one left behind.

A mark is a random number that a program's processes carry and pass on (see `tree`), so a process with a mark out of the
file is of a program that was started from this data directory, and nobody else's.
"""

import os
from pathlib import Path
from typing import Final

import structlog

_log = structlog.get_logger()

_SURE: Final = 1 << 32
"""A smaller number may be a limit that somebody set by hand. It proves nothing."""
_MANY_LINES = 1_024


class MarkBook:
    """One file, one writer: whoever holds the lock of the data directory. What cannot be written is logged.

    Args:
        path: made when the first program starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: set[int] = set()
        self.left: frozenset[int] = _read(path)
        self._lines = len(self.left)

    def add(self, mark: int) -> None:
        """A program with this mark is about to start."""
        if mark < _SURE:
            return
        self._running.add(mark)
        if self._lines >= _MANY_LINES and self._lines >= 4 * (len(self._running) + len(self.left)):
            self._rewrite()
        else:
            self._append(mark)

    def drop(self, mark: int) -> None:
        """It was seen to end. Its line goes with the next rewriting."""
        self._running.discard(mark)

    def forget_left(self) -> None:
        """What an earlier incarnation left was seen to end."""
        self.left = frozenset[int]()
        self._rewrite()

    def _append(self, mark: int) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, b"%d\n" % mark)
            finally:
                os.close(file)
            self._lines += 1
        except OSError as error:
            _log.error("program_mark_unwritten", path=str(self._path), error=error.strerror)

    def _rewrite(self) -> None:
        fresh = self._path.with_suffix(".new")
        marks = sorted(self._running | self.left)
        try:
            fresh.write_text("".join(f"{mark}\n" for mark in marks))
            fresh.replace(self._path)
            self._lines = len(marks)
        except OSError as error:
            _log.error("program_mark_unwritten", path=str(self._path), error=error.strerror)


def _read(path: Path) -> frozenset[int]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset[int]()
    # A line may have been cut short by a full disk: what it says then is no mark of ours, or of nobody.
    marks = frozenset(int(line) for line in lines if line.isascii() and line.isdecimal())
    return frozenset(mark for mark in marks if mark >= _SURE)
