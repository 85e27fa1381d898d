"""Process trees, by ids that a later process cannot take over."""

import contextlib
import os
import signal
import time
from collections.abc import Container, Iterable

import psutil


def is_live(process: psutil.Process) -> bool:
    """Whether this very process still exists and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def live(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_live(process)]


def tree(root: psutil.Process | int) -> list[psutil.Process]:
    """A process and all its descendants, the root first; empty when it is gone."""
    try:
        process = psutil.Process(root) if isinstance(root, int) else root
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def descendants() -> list[psutil.Process]:
    """What this process has started, directly or not, and also what was left to it by those."""
    return tree(os.getpid())[1:]


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def stop_tree(root: psutil.Process) -> list[psutil.Process]:
    """SIGSTOP a process and its descendants, and those that it started while this went on. Returns all of them."""
    stopped: list[psutil.Process] = []
    while fresh := [process for process in tree(root) if process not in stopped]:
        send(fresh, signal.SIGSTOP)
        stopped += fresh
    return stopped


def end_all(known: Iterable[psutil.Process], strangers: Container[psutil.Process]) -> list[psutil.Process]:
    """SIGKILL these processes and every descendant of this one that is no stranger, until none is left.

    Returns what would not go within five seconds.
    """
    deadline = time.monotonic() + 5.0
    seen = list(known)
    while True:
        seen += [process for process in descendants() if process not in seen and process not in strangers]
        left = live(seen)
        if not left or time.monotonic() > deadline:
            _bury(seen)
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.02)


def _bury(dead: Iterable[psutil.Process]) -> None:
    for process in dead:
        with contextlib.suppress(ChildProcessError):  # not a child of this process
            os.waitpid(process.pid, os.WNOHANG)
