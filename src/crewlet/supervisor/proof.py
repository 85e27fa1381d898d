"""Ending everything that a process started, and knowing that it ended.

The caller must be a sub-reaper (`spawn.become_subreaper`), so that whatever loses its own parent becomes the caller's
child. The proof is then a scan of `/proc` without a single child to be ended in it: a child stays listed, at least as
a zombie, until the caller reaps it, nothing is reaped during a scan, and every descendant has a child of the caller
above it. Double forks, new sessions and fork storms change nothing in that.
"""

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Left:
    """A process that SIGKILL did not end in time."""

    pid: int
    name: str
    state: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state})"


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of ending everything.

    Attributes:
        is_proven: nothing is left but what the caller spared; always false where the system has no sub-reaper.
        left: children that would not end; not what was already given up before the call.
        reaped: exit code by process id of the children that ended, minus the signal where one ended them.
    """

    is_proven: bool
    left: tuple[Left, ...]
    reaped: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    ppid: int
    state: str
    name: str
    started: str


def end_all(
    spare: Collection[int], *, given_up: Collection[int] = (), group: int | None = None, timeout_s: float = 2.0
) -> Proof:
    """Kill every descendant of this process and wait until none is left.

    Args:
        spare: children that live on, with whatever they started.
        given_up: children that an earlier call could not end: killed again, not waited for.
        group: a process group to kill first. It saves a scan; where there is no `/proc` it is all there is.
        timeout_s: how long to go on.
    """
    reaped: dict[int, int] = {}
    if group is not None:
        _kill_group(group)
    if sys.platform != "linux":
        return _end_child(group, reaped, timeout_s)
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        family = _family(spare)
        children = [process for process in family if process.ppid == os.getpid()]
        waited_for = [process for process in children if process.pid not in given_up]
        for process in family:
            _kill(process)
        for process in children:
            _reap(process.pid, reaped)
        if not waited_for:
            return Proof(not children, (), reaped)
        if time.monotonic() >= deadline:
            left = tuple(Left(p.pid, p.name, p.state) for p in waited_for if p.pid not in reaped)
            return Proof(False, left, reaped)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def reap_orphans(spare: Collection[int]) -> frozenset[int]:
    """Reap children that ended by themselves, up to one that someone else waits for. Never waits.

    Returns:
        Their process ids.
    """
    reaped: dict[int, int] = {}
    while sys.platform == "linux":
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        if ended is None or ended.si_pid in spare:
            break
        _reap(ended.si_pid, reaped)
    return frozenset(reaped)


def _family(spare: Collection[int]) -> list[_Process]:
    """Every descendant, children first, except the spared and theirs."""
    by_parent: dict[int, list[_Process]] = {}
    for process in _scan().values():
        if process.pid not in spare:
            by_parent.setdefault(process.ppid, []).append(process)
    found: list[_Process] = []
    parents = [os.getpid()]
    while parents:
        children = by_parent.pop(parents.pop(), [])
        found += children
        parents += [child.pid for child in children]
    return found


def _scan() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = _look(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def _look(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    # The name may hold anything, brackets and spaces too; what follows its last bracket is regular.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return _Process(pid, int(fields[1]), fields[0], head.partition("(")[2], fields[19])


def _kill(process: _Process) -> None:
    """Kill that very process, and never another that got its number since."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # a sandbox that does not know the call, or no descriptors left
        _kill_by_number(process)
        return
    try:
        now = _look(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass  # ended by itself, or not ours to kill: then it shows among those left
    finally:
        os.close(handle)


def _kill_by_number(process: _Process) -> None:
    now = _look(process.pid)
    if now is not None and now.started == process.started:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except OSError:
            pass


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass


def _reap(pid: int, reaped: dict[int, int]) -> bool:
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    if done:
        reaped[pid] = os.waitstatus_to_exitcode(status)
    return bool(done)


def _end_child(pid: int | None, reaped: dict[int, int], timeout_s: float) -> Proof:
    deadline = time.monotonic() + timeout_s
    while pid is not None and not _reap(pid, reaped):
        if time.monotonic() >= deadline:
            return Proof(False, (Left(pid, "?", "?"),), reaped)
        time.sleep(_LONGEST_PAUSE_S)
    return Proof(False, (), reaped)
