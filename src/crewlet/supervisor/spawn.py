"""Starting a child that cannot outlive the process that started it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: between fork and exec nothing may take the loader's lock.
_libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own; on Linux it is killed when its starter ends.

    The kernel ties the child to the *thread* that starts it, so call this from a thread that lives as long as the
    child should: the main thread. Other systems than Linux have no such tie.

    Args:
        env: the whole environment of the child.
        pass_fds: descriptors the child inherits under the same numbers; no others but the standard three.

    Raises:
        OSError: the program could not be started.
    """
    return subprocess.Popen(
        argv,
        env=dict(env),
        pass_fds=tuple(pass_fds),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - it calls one function of an already loaded library
    )


def become_subreaper() -> bool:
    """Have orphaned descendants become this process's children, instead of init's. False where that is impossible."""
    if _libc is None:
        return False
    return _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _die_with(starter: int) -> Callable[[], None] | None:
    libc = _libc
    if libc is None:
        return None

    def tie() -> None:
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != starter:
            os._exit(127)  # the starter died before the tie held

    return tie
