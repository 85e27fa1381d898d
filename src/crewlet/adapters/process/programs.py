"""The Programs port on this machine.

A program is started from the loop's own thread, which must be the process's main one: the parent-death signal that ties
it to this process follows the *thread* that forked it. It keeps its process id (unreaped, if it has died) until
`end()`, so that no stranger can come to be under it while anything of the program is left; who starts a program must
therefore end it, even one that has exited by itself.
"""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import IO

import structlog

from crewlet.adapters.process import tree
from crewlet.adapters.process.marks import MarkBook
from crewlet.adapters.process.pipes import ErrorPipe, InputPipe, OutputPipe
from crewlet.kit.executables import missing, missing_folder, not_executable, not_found
from crewlet.ports.errors import Misuse
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec, ProgramUnproven

_log = structlog.get_logger()

_PROOF_S = 5.0
_REAP_EVERY_S = 2.0
_POLL_S = 0.02
_CLEAN_LOOKS = 3


class LocalPrograms(Programs):
    """Starts programs as children of this process.

    Making one makes this process a sub-reaper (Linux) for the rest of its life: orphans among its descendants become
    its children. Those of its programs it buries, and when a program ends it kills what cannot be told from a process
    that the program left behind: a child in another session that came after the program started and is of no other one.
    So nothing else in this process may start children in sessions of their own while programs run. Children in this
    process's own session are never touched or waited for.

    Args:
        proof_s: how long `end()` looks for the last process to go before it says that it cannot prove it.
        marks: where the marks of the programs that run are kept; None keeps none, and `end_left` finds nothing.
    """

    def __init__(self, *, proof_s: float = _PROOF_S, marks: MarkBook | None = None) -> None:
        self._proof_s = proof_s
        self._marks = marks
        self._running: dict[int, LocalProgram] = {}
        self._reaping: asyncio.TimerHandle | None = None
        self.adopts_orphans = tree.adopt_orphans()

    @property
    def running(self) -> frozenset[int]:
        """Process ids of the programs that were started and not yet seen to end."""
        return frozenset(self._running)

    async def spawn(self, spec: ProgramSpec) -> Program:
        """Start it; see the port. There is no instant at which a cancellation could leave it started and unknown.

        Raises:
            Misuse: this is not the main thread, or `argv` is empty.
            ProgramNotStarted: see the port.
        """
        if threading.current_thread() is not threading.main_thread():
            raise Misuse("programs are started from the main thread: they end with the thread that started them")
        if not spec.argv:
            raise Misuse("a program needs at least its own name")
        mark = tree.new_mark()
        try:
            earlier = tree.children_now()
        except OSError as error:
            raise ProgramNotStarted(_why_not(spec, error)) from error
        if self._marks is not None:
            self._marks.add(mark)
        process = _start(spec, mark)

        def forget(pid: int) -> None:
            self._forget(pid, mark)

        try:
            program = LocalProgram(process, spec, tree.tree_of(process.pid, mark, earlier), self._proof_s, forget)
        except OSError as error:
            # It is its group's leader, and has had no time for anything else.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise ProgramNotStarted(_why_not(spec, error)) from error
        self._running[process.pid] = program
        if self._reaping is None:
            self._reap_later()
        return program

    async def look(self, spec: ProgramSpec) -> None:
        """See the port. A disk that does not answer holds up nobody else."""
        if problem := await asyncio.to_thread(missing, spec.argv[0], spec.env, spec.cwd):
            raise ProgramNotStarted(problem)

    async def end_left(self) -> None:
        """End what programs of an earlier incarnation left: it died, and they had left its tree.

        Linux only. A process that cannot be seen to end is an alarm (`left_programs_unproven`), and is looked for again
        at the next start.
        """
        if self._marks is None or not self._marks.left:
            return
        ended: set[int] = set()
        give_up_at = time.monotonic() + self._proof_s
        clean_looks = 0
        while clean_looks < _CLEAN_LOOKS:
            left = tree.strike_marked(self._marks.left)
            ended |= left
            clean_looks = 0 if left else clean_looks + 1
            if left and time.monotonic() > give_up_at:
                _log.error("left_programs_unproven", left=sorted(left))
                return
            await asyncio.sleep(0.01)
        self._marks.forget_left()
        if ended:
            _log.warning("left_programs_ended", pids=sorted(ended))

    def _forget(self, pid: int, mark: int) -> None:
        if self._marks is not None:
            self._marks.drop(mark)
        del self._running[pid]
        if not self._running and self._reaping is not None:
            self._reaping.cancel()
            self._reaping = None

    def _reap_later(self) -> None:
        self._reaping = asyncio.get_running_loop().call_later(_REAP_EVERY_S, self._reap)

    def _reap(self) -> None:
        try:
            dead = tree.dead_children()
        except OSError:
            dead = ()  # seen the next time
        for program in self._running.values():
            program.reap_orphans(dead)
        self._reap_later()


class LocalProgram(Program):
    """One program of this machine; see the port."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        spec: ProgramSpec,
        processes: tree.Tree,
        proof_s: float,
        on_ended: Callable[[int], None],
    ) -> None:
        self._process = process
        self._tree = processes
        self._proof_s = proof_s
        self._on_ended = on_ended
        self._is_ended = False
        self._input = InputPipe(_pipe(process.stdin))
        self._errors = ErrorPipe(_pipe(process.stderr))
        self._output = OutputPipe(
            _pipe(process.stdout), max_line_bytes=spec.max_line_bytes, max_output_bytes=spec.max_output_bytes
        )
        self._exit = _ExitWatch(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def write_line(self, line: bytes) -> None:
        await self._input.write_line(line)

    def close_input(self) -> None:
        self._input.close()

    def lines(self) -> AsyncIterator[bytes]:
        return self._output.lines()

    def error_bytes(self) -> int:
        return self._errors.count()

    def error_tail(self, since: int = 0) -> str:
        return self._errors.tail(since)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit.code)

    def reap_orphans(self, dead: Sequence[tree.Dead]) -> None:
        self._tree.reap_orphans(dead)

    async def end(self, *, grace_s: float = 0.0) -> None:
        if self._is_ended:
            return
        try:
            if grace_s > 0 and not self._exit.code.done():
                await self._ask_to_end(grace_s)
        except asyncio.CancelledError:
            self._strike()
            raise
        started = time.monotonic()
        pause = 0.001
        # Another call may finish the job during any wait of this one; its proof is as good as ours.
        while not self._is_ended:
            left = self._strike()
            if not left and self._exit.has_ended():
                self._bury()
                return
            if time.monotonic() - started > self._proof_s:
                pids = sorted(left) or [self.pid]
                _log.error("program_unproven", pid=self.pid, left=pids)
                raise ProgramUnproven(f"still there after {self._proof_s:g} s: {pids}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)

    def _strike(self) -> frozenset[int]:
        try:
            return self._tree.strike()
        except OSError:
            return frozenset((self.pid,))  # who could not look has no proof

    async def _ask_to_end(self, grace_s: float) -> None:
        self._exit.send(signal.SIGTERM)
        await asyncio.wait((self._exit.code,), timeout=grace_s)

    def _bury(self) -> None:
        self._is_ended = True
        self._process.returncode = self._exit.reap()
        self._tree.root_was_reaped()
        self._input.close()
        self._output.finish()
        self._errors.finish()
        self._on_ended(self.pid)


class _ExitWatch:
    """Learns the exit code of one child, and leaves it unreaped until it is told to.

    Without pidfd (macOS) it has to look again and again, and a look reaps.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self.code: asyncio.Future[int] = self._loop.create_future()
        self._handle: int | None = None
        if hasattr(os, "pidfd_open"):
            self._handle = os.pidfd_open(pid)
            self._loop.add_reader(self._handle, self._look)
        else:
            self._poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the child, if it has not ended."""
        if not self.code.done():
            os.kill(self._pid, number)  # it is our child and unreaped, so the id is its own

    def has_ended(self) -> bool:
        """Whether all of the child has: one whose threads are still ending looks dead, and cannot be reaped yet."""
        if self._handle is None:
            return True  # where `reap` waits for it
        self._look()
        return self.code.done()

    def reap(self) -> int:
        """The exit code of a child that has ended; afterwards the process id is anybody's."""
        if self._handle is None:
            if not self.code.done():
                self._poll(0)
            return self.code.result()
        self._look()
        os.close(self._handle)
        self._handle = None
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        return self.code.result()

    def _look(self) -> None:
        if self.code.done():
            return
        try:
            found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            _log.error("program_exit_code_lost", pid=self._pid)
            self._settle(255)
            return
        if found is not None:
            self._settle(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def _settle(self, code: int) -> None:
        if self._handle is not None:
            self._loop.remove_reader(self._handle)
        self.code.set_result(code)

    def _poll(self, options: int = os.WNOHANG) -> None:
        if self.code.done():
            return
        pid, status = os.waitpid(self._pid, options)
        if pid:
            self._settle(os.waitstatus_to_exitcode(status))
        else:
            self._loop.call_later(_POLL_S, self._poll)


def _start(spec: ProgramSpec, mark: int) -> "subprocess.Popen[bytes]":
    parent = os.getpid()
    try:
        return subprocess.Popen(
            list(spec.argv),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=spec.cwd,
            env=dict(spec.env),
            start_new_session=True,
            # The one way to be tied to the parent from the first instruction on. What runs there takes no lock.
            preexec_fn=lambda: tree.enter_child(parent, mark),  # noqa: PLW1509
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ProgramNotStarted(_why_not(spec, error)) from error


def _why_not(spec: ProgramSpec, error: Exception) -> str:
    name = spec.argv[0]
    if problem := missing_folder(spec.cwd):
        return problem
    match error:
        case FileNotFoundError():
            return not_found(name, spec.env)
        case PermissionError():
            return not_executable(name)
        case OSError():
            return f"{name} did not start: {error.strerror}"
        case _:
            return f"{name} did not start: {error}"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
