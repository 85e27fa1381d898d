"""Ending everything that a process started, and knowing that it ended.

The caller must be a sub-reaper (`spawn.become_subreaper`), so that whatever loses its own parent becomes the caller's
child. The proof is then a scan of `/proc` without a single child to be ended in it: a child stays listed, at least as
a zombie, until the caller reaps it, nothing is reaped during a scan, and every descendant has a child of the caller
above it. Double forks, new sessions and fork storms change nothing in that.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from crewlet.kit.processes import ProcessLine, look_at

_PAUSE_S = 0.001
_END_POLL_S = 0.01
_FAST_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Left:
    """A process that SIGKILL did not end in time, or the newest of a storm that outran the killing."""

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


def end_all(
    spare: Collection[int],
    *,
    given_up: Collection[int] = (),
    group: int | None = None,
    stuck_s: float = 2.0,
    timeout_s: float = 30.0,
) -> Proof:
    """Kill every descendant of this process and wait until none is left.

    Args:
        spare: children that live on, with whatever they started.
        given_up: children that an earlier call could not end: killed again, not waited for.
        group: a process group to kill first. It saves a scan; where there is no `/proc` it is all there is.
        stuck_s: how long a child may take to die of SIGKILL before it is left.
        timeout_s: how long to go on against children that keep making others.
    """
    reaped: dict[int, int] = {}
    if group is not None:
        _kill_group(group)
    if sys.platform != "linux":
        return _end_child(group, reaped, stuck_s)
    hunt = _Hunt(frozenset(spare), reaped)
    deadline = time.monotonic() + timeout_s
    while True:
        hunt.strike_children()
        try:
            dying = hunt.strike_family()
        except OSError:  # without a free descriptor, say: who could not look has no proof
            if time.monotonic() >= deadline:
                return Proof(False, (), reaped)
            time.sleep(_PAUSE_S)
            continue
        if dying is None:
            return Proof(True, (), reaped)
        waited_for = [child for child in dying if child.pid not in given_up]
        now = time.monotonic()
        # A child reaped just now may have left another to us since: only a walk that meets none is the proof.
        is_stuck = not hunt.has_reaped and all(hunt.is_stuck(child.pid, stuck_s) for child in waited_for)
        if is_stuck or now >= deadline:
            return Proof(False, tuple(Left(child.pid, child.name, child.state) for child in waited_for), reaped)
        if not hunt.has_found:
            time.sleep(_PAUSE_S)


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


class _Hunt:
    """Rounds of killing.

    What runs away by forking lives for a millisecond or less at each number, so a process is killed at the moment it
    is seen, and our own children, found in one read, are killed many times as often as all of `/proc` is walked.
    """

    def __init__(self, spare: frozenset[int], reaped: dict[int, int]) -> None:
        self.has_found = False
        """Whether the last walk met a process for the first time."""
        self.has_reaped = False
        """Whether the last walk's children ended."""
        self._me = os.getpid()
        self._spare = spare
        self._reaped = reaped
        self._struck_at: dict[int, float] = {}
        self._children_file = f"/proc/self/task/{threading.get_native_id()}/children"

    def strike_children(self) -> None:
        """Kill and reap the children of this thread, again and again while new ones turn up."""
        for _ in range(_FAST_ROUNDS):
            try:
                with open(self._children_file, "rb") as file:
                    pids = [pid for pid in map(int, file.read().split()) if pid not in self._spare]
            except OSError:
                return  # a kernel without the file; the walk does it alone
            is_new = False
            for pid in pids:
                is_new |= self._strike(pid)
            for pid in pids:
                self._reap(pid)
            if not is_new:
                return

    def strike_family(self) -> list[ProcessLine] | None:
        """Walk `/proc` once and kill every descendant as it is met. Reaps only after the walk.

        Returns:
            Our own children among them that have yet to die; None when there was no descendant as the walk began.
        """
        self.has_found = self.has_reaped = False
        family = {self._me}
        children: list[ProcessLine] = []
        for name in os.listdir("/proc"):
            process = look_at(int(name)) if name.isdigit() else None
            if process is None or process.ppid not in family or process.pid in self._spare:
                continue
            family.add(process.pid)
            if process.ppid == self._me:
                children.append(process)
                self.has_found |= self._strike(process.pid)
            else:
                _kill(process)
        dying = [child for child in children if not self._reap(child.pid)]
        self.has_reaped = len(dying) < len(children)
        return dying if children else None

    def is_stuck(self, pid: int, stuck_s: float) -> bool:
        """Whether a child has outlived its kill for so long."""
        return time.monotonic() - self._struck_at[pid] >= stuck_s

    def _strike(self, pid: int) -> bool:
        """Kill a child of ours, whose number is its own until we reap it. True when it is the first time."""
        with suppress(OSError):  # not ours to kill: then it shows among those left
            os.kill(pid, signal.SIGKILL)
        is_new = pid not in self._struck_at
        self._struck_at.setdefault(pid, time.monotonic())
        return is_new

    def _reap(self, pid: int) -> bool:
        has_ended = _reap(pid, self._reaped)
        if has_ended:
            self._struck_at.pop(pid, None)
        return has_ended


def _kill(process: ProcessLine) -> None:
    """Kill that very process, and never another that got its number since."""
    with suppress(OSError):
        _kill_pinned(process)


def _kill_pinned(process: ProcessLine) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # a sandbox that does not know the call, or no descriptors left
        _kill_by_number(process)
        return
    try:
        now = look_at(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass  # ended by itself, or not ours to kill: then it shows among those left
    finally:
        os.close(handle)


def _kill_by_number(process: ProcessLine) -> None:
    now = look_at(process.pid)
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
        time.sleep(_END_POLL_S)
    return Proof(False, (), reaped)
