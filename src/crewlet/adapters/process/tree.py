"""Every process that came of one program: found in what the kernel says at this moment, killed, and seen to be gone.

On Linux a program is told from everything else by these facts, the first two of which it cannot lose by forking twice,
starting sessions, or clearing its environment:

- a *mark*: a resource limit that no kernel since 2.4 enforces (RLIMIT_LOCKS), set to a number of the program's own
  before it runs. Limits pass through fork and exec, and can be read from outside in about 2 µs.
- descent: this process is a sub-reaper, so whatever the program's processes leave behind becomes our child.
- the program's session, and its process group.
- what is left over: a process that changed its mark, started a session *and* was orphaned is still a child of ours, in
  a session that cannot be ours, since nothing goes back into a session it has left. Such a *stray* that belongs to no
  other running program ends with the first program to end that is older than our having that child.

Only what takes the mark of another running program gets away, until that one ends; and what another service starts on
the program's behalf (a container engine, `at`) was never the program's child.

Elsewhere (macOS, for development) the process group is all there is: a child that starts a session of its own is not
found there, and does not end with its program.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from secrets import randbelow
from typing import ClassVar, Protocol

from crewlet.kit.processes import ProcessLine, look_at

_IS_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_RLIMIT_LOCKS = 10
_UNMARKED = 0
_LEAST_LEARNT_MARK = 1 << 32
_FAST_ROUNDS = 8


Child = tuple[int, int]
"""A process id, and when that process started."""


class Tree(Protocol):
    """The processes of one program, from its start until they are all gone."""

    def strike(self) -> frozenset[int]:
        """Kill whatever is left and bury our own dead among it. Takes a few milliseconds and never waits.

        Returns:
            The process ids that were seen. Empty is proof: no process of the program is running. The program's own
            process is left to its owner to reap, and is not counted once it is dead.

        Raises:
            OSError: it cannot be seen what is running, as without a free descriptor. That proves nothing.
        """
        ...

    def reap_orphans(self, dead: "Sequence[Dead]") -> None:
        """Bury those of the program's orphans that have died by themselves, so that a long run leaves no zombies.

        Args:
            dead: what `dead_children` has just found, for all the programs that are looked after together.
        """
        ...

    def root_was_reaped(self) -> None:
        """The program's own process id may belong to a stranger from now on."""
        ...


Dead = tuple[ProcessLine, int]
"""A child of this process that has died and is not buried, and its mark."""


def dead_children() -> "Sequence[Dead]":
    """What may be buried: one look through `/proc` takes milliseconds, so one has to do for any number of programs."""
    if not _IS_LINUX:
        return ()
    me = os.getpid()
    return [(p, _mark_of(p.pid)) for p in _snapshot() if p.is_dead and p.ppid == me]


def adopt_orphans() -> bool:
    """Make this process the one that its descendants' orphans come to. False where the system has no such thing."""
    return _IS_LINUX and _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def new_mark() -> int:
    """A number for a program's mark: under our own limit, which a child cannot pass without privileges."""
    if not _IS_LINUX:
        return _UNMARKED
    ceiling = resource.getrlimit(_RLIMIT_LOCKS)[1]
    if ceiling == resource.RLIM_INFINITY:
        ceiling = 1 << 62
    return ceiling // 2 + randbelow(max(ceiling // 2, 1))


def enter_child(parent: int, mark: int) -> None:
    """Between fork and exec: tie this process to its parent's life and mark it. It calls nothing that takes a lock."""
    if _IS_LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)  # the parent died before the tie was made, so nobody would ever end us
        resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def children_now() -> frozenset[Child]:
    """This process's children, to be asked for before a program is started: none of them is of that program."""
    if not _IS_LINUX:
        return frozenset()
    me = os.getpid()
    return frozenset((p.pid, p.started) for p in _snapshot() if p.ppid == me)


def tree_of(root: int, mark: int, earlier: frozenset[Child]) -> Tree:
    """The tree of a program that was just started with that mark, when this process had those children already."""
    return _MarkedTree(root, mark, earlier) if _IS_LINUX else _GroupTree(root)


def strike_marked(marks: frozenset[int]) -> frozenset[int]:
    """Kill every process that carries one of these marks, whoever's child it has become, but none of this one's own.

    Returns:
        The process ids that were seen. What forks without a pause may be missed by a single look.
    """
    if not _IS_LINUX:
        return frozenset()
    marks -= {_UNMARKED, _mark_of(os.getpid())}
    seen: set[int] = set()
    for _ in range(_FAST_ROUNDS):
        killed = _kill_carriers(marks)
        seen |= killed
        if not killed:
            break
    return frozenset(seen)


class _MarkedTree:
    """Linux."""

    # Of this whole process, as its children are: whose is whose has to be known across all that start programs here.
    _running: ClassVar[set["_MarkedTree"]] = set()

    def __init__(self, root: int, mark: int, earlier: frozenset[Child]) -> None:
        self._root: int | None = root
        # A program may itself run programs of this kind, which carry marks of their own.
        self._marks = {mark}
        self._foreign = {_UNMARKED, _mark_of(os.getpid())}
        self._earlier = earlier
        self._running.add(self)

    def root_was_reaped(self) -> None:
        self._root = None
        self._running.discard(self)

    def strike(self) -> frozenset[int]:
        if self._root is not None:
            with suppress(ProcessLookupError, PermissionError):
                # At one instant for the whole group: a storm of forks inside it cannot outrun this.
                os.killpg(self._root, signal.SIGKILL)
        for _ in range(_FAST_ROUNDS):
            if not _kill_carriers(self._marks):
                break
        # One clean pass proves it. Each living process of the program hangs on a child of ours that is of the program
        # too; only we can reap that child, we do not while looking, so the listing cannot have missed it.
        seen = self._members(_snapshot())
        for process in seen:
            if not process.is_dead:
                _kill(process)
        self._bury(seen)
        return frozenset(process.pid for process in seen)

    def reap_orphans(self, dead: "Sequence[Dead]") -> None:
        self._bury(process for process, mark in dead if mark in self._marks)

    def _members(self, processes: list[ProcessLine]) -> list[ProcessLine]:
        marks = {p.pid: _mark_of(p.pid) for p in processes}
        members = self._grown(self._known(processes, marks), processes)
        self._learn({marks[pid] for pid in members})
        free = self._not_of_others(processes, marks, members)
        members = self._grown(members | self._strays(free), free)
        return [p for p in members.values() if not (p.pid == self._root and p.is_dead)]

    def _known(self, processes: Iterable[ProcessLine], marks: dict[int, int]) -> dict[int, ProcessLine]:
        return {p.pid: p for p in processes if p.pid == self._root or marks[p.pid] in self._marks}

    def _grown(self, members: dict[int, ProcessLine], processes: list[ProcessLine]) -> dict[int, ProcessLine]:
        """With all that descend from them or are in their sessions."""
        members = dict(members)
        grew = True
        while grew:
            sessions = {p.session for p in members.values()}
            if self._root is not None:
                sessions.add(self._root)
            sessions.discard(os.getsid(0))
            found = [p for p in processes if p.pid not in members and (p.ppid in members or p.session in sessions)]
            members.update((p.pid, p) for p in found)
            grew = bool(found)
        members.pop(os.getpid(), None)
        return members

    def _not_of_others(
        self, processes: list[ProcessLine], marks: dict[int, int], members: dict[int, ProcessLine]
    ) -> list[ProcessLine]:
        rest = [p for p in processes if p.pid not in members]
        theirs = {pid for tree in self._running - {self} for pid in tree._grown(tree._known(rest, marks), rest)}
        return [p for p in processes if p.pid not in theirs]

    def _strays(self, processes: list[ProcessLine]) -> dict[int, ProcessLine]:
        me, here = os.getpid(), os.getsid(0)
        return {
            p.pid: p
            for p in processes
            if p.ppid == me and p.session != here and (p.pid, p.started) not in self._earlier
        }

    def _learn(self, marks: set[int]) -> None:
        """Take marks that members carry for the program's own, unless they may be somebody else's.

        A small number is a limit that someone set by hand, as any process of this machine may have.
        """
        others = {mark for tree in self._running - {self} for mark in tree._marks}
        self._marks.update(mark for mark in marks - self._foreign - others if mark >= _LEAST_LEARNT_MARK)

    def _bury(self, processes: Iterable[ProcessLine]) -> None:
        me = os.getpid()
        for process in processes:
            if process.ppid == me and process.pid != self._root:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)


class _GroupTree:
    """Where there is no `/proc`: the process group."""

    def __init__(self, root: int) -> None:
        self._root = root

    def root_was_reaped(self) -> None:
        """A group keeps its number for as long as it has members."""

    def strike(self) -> frozenset[int]:
        try:
            os.killpg(self._root, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # macOS refuses where only the dead are left
            return frozenset()
        return frozenset((self._root,))

    def reap_orphans(self, dead: "Sequence[Dead]") -> None:
        """Orphans go to the system's first process here."""


def _kill_carriers(marks: Container[int]) -> set[int]:
    """Kill all that carry such a mark, newest first: what forks without a pause is found at the high end."""
    killed: set[int] = set()
    for pid in reversed(_process_ids()):
        if _mark_of(pid) in marks:
            process = look_at(pid)
            if process is not None and not process.is_dead:
                _kill(process)
                killed.add(pid)
    return killed


def _kill(process: ProcessLine) -> None:
    """Kill exactly this process: the id is pinned before it is compared, so a newcomer under the same id is spared."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        now = look_at(process.pid)
        if now is not None and now.started == process.started:
            with suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def _snapshot() -> list[ProcessLine]:
    return [process for pid in _process_ids() if (process := look_at(pid)) is not None]


def _process_ids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def _mark_of(pid: int) -> int:
    try:
        hard = resource.prlimit(pid, _RLIMIT_LOCKS)[1]
    except OSError:
        return _UNMARKED
    return _UNMARKED if hard == resource.RLIM_INFINITY else hard


def _prctl(option: int, argument: int) -> int:
    return int(_LIBC.prctl(option, argument, 0, 0, 0))


# Holding the interpreter lock through the call: a forked child must not wait for anything.
_LIBC = ctypes.PyDLL(None)
