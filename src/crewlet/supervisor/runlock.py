"""The locks of a data directory: one holder each, whose process id is in the file while it has not ended in order.

Whoever ends in order empties the file. So a file that is not locked and still has an id tells of a holder that was
killed or crashed.
"""

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crewlet.kit.unusable import Unusable

UP_LOCK, NODE_LOCK = "up.lock", "node.lock"

LOOKED_AT_S = 0.5
_POLL_S = 0.01


class Taken(Exception):
    """Another process has the lock. `pid` is its id, as far as it has written it; `by` says so in a sentence."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(f"process {pid}" if pid is not None else "another process")
        self.pid = pid
        self.by = f" (process {pid})" if pid is not None else ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lock, or had it last where `is_held` is false; `pid` is then None after an end in order."""

    pid: int | None
    is_held: bool


def take_in(data_dir: Path, name: str) -> int:
    """Take a lock of a data directory, which is made where it is missing.

    Raises:
        Taken: by another process.
        Unusable: the folder cannot be used.
    """
    run_dir = data_dir / "run"
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return take(run_dir / name)
    except OSError as error:
        raise Unusable(error) from error


def take(path: Path) -> int:
    """Take the lock and write this process's id; returns the descriptor that holds it, for `give_up`.

    It waits half a second at most: a command that looks who has the lock has it for an instant itself.

    Raises:
        Taken: by another process.
        OSError: the file cannot be used.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LOOKED_AT_S
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Taken(_pid_in(lock)) from None
            time.sleep(_POLL_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def give_up(lock: int) -> None:
    """Let it go, as one that ends in order."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
    os.close(lock)


def look(path: Path) -> Holder | None:
    """Who has the lock, or had it last; None where nobody ever took it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Holder(_pid_in(lock), is_held=True)
    else:
        return Holder(_pid_in(lock), is_held=False)
    finally:
        os.close(lock)


def _pid_in(lock: int) -> int | None:
    text = os.pread(lock, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None
