"""A file of log lines that is moved aside when it is full.

`logging.handlers` has no handler that moves a full file aside and also follows one that somebody else moved; and the
rights of the file, what is said of a lost line, and a full file of which none is kept would each be an override.
"""

import contextlib
import errno
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TextIO


class LogFile:
    """Appends lines to a file. When it is full it becomes `NAME.1`, the one before `NAME.2`, and so on.

    A line that cannot be written is lost, which is said on standard error, once until one can be written again: a full
    disk ends no node. Any thread may write. What is no plain file, as `/dev/stdout`, is never full. Where somebody else
    has moved the file aside or emptied it, as logrotate does, the next line begins the one that is to be there.

    Args:
        max_bytes: how large it grows.
        max_backups: how many full ones are kept; 0 keeps none.

    Raises:
        OSError: it cannot be opened, or could never be moved aside.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_backups: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_backups = max_backups
        self._lock = threading.RLock()
        self._file = self._opened()
        self._grows = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        if self._grows and not os.access(path.parent, os.W_OK | os.X_OK):
            self._file.close()
            raise PermissionError(
                errno.EACCES, "this user may not write to its folder, to move it aside when it is full"
            )
        self._is_failing = False

    def write(self, line: str) -> None:
        """Append one line, its end included."""
        with self._lock:
            try:
                self._append(line)
                self._is_failing = False
            except (OSError, ValueError) as error:
                if not self._is_failing:
                    self._tell(error)
                self._is_failing = True

    def close(self) -> None:
        self._file.close()

    def _append(self, line: str) -> None:
        size = len(line.encode("utf-8", "backslashreplace"))
        if self._file.closed:  # it could not be turned over before
            self._file = self._opened()
        if self._grows and (already := self._bytes_in_place()) and already + size > self._max_bytes:
            self._turn_over()
        self._file.write(line)
        self._file.flush()

    def _bytes_in_place(self) -> int:
        """How large the file is; one that is not at its path any more is opened anew first."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == self._identity:
            return found.st_size
        self._file.close()
        self._file = self._opened()
        return os.fstat(self._file.fileno()).st_size

    def _tell(self, error: Exception) -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error may lie on the same full disk
            print(f"crewlet: the log file {self._path} cannot be written: {error}", file=sys.stderr, flush=True)

    def _opened(self) -> TextIO:
        # Whoever runs the node may read it, and nobody else: names and reasons of a company stand in it.
        number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = os.fstat(number)
        self._identity = found.st_dev, found.st_ino
        return open(number, "a", encoding="utf-8", errors="backslashreplace")

    def _turn_over(self) -> None:
        self._file.close()
        for number in range(self._max_backups - 1, 0, -1):
            if (older := self._backup(number)).exists():
                older.replace(self._backup(number + 1))
        if self._max_backups:
            self._path.replace(self._backup(1))
        else:
            self._path.unlink(missing_ok=True)
        self._file = self._opened()

    def _backup(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
