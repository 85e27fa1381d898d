"""One incarnation of the node: a process, its page, and the end of all that came of it."""

import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from crewlet.supervisor.page import PAGE_ENV, Page, boottime
from crewlet.supervisor.proof import Proof, end_all
from crewlet.supervisor.spawn import spawn

WEDGED = 75
"""The exit code of a node that was alive and yet did not renew its leases."""

_MARGIN_S = 0.05
_STACKS_S = 1.0
_STALE_BEAT_S = 1.0


class NodeProcess:
    """A node with a fresh page, so that nothing of an earlier one can write into its deadline.

    After `end`, `exit_code` says how it ended, and `had_started` whether it ever had its broker (and says its owner)
    or had come up (and beats). Its page stays, for whoever gives back what it had, until `close`.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.was_wedged = False
        self.had_started = False
        self.exit_code = 0
        self.started_at = boottime()
        self._asked_for: float | None = None
        self.page = Page.create()
        try:
            fd = self.page.fd
            self._process = spawn(argv, env={**env, PAGE_ENV: str(fd)}, pass_fds=(fd,))
        except BaseException:
            self.page.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it ended. It stays a zombie where it can, so that its process group is still surely its own."""
        if sys.platform != "linux":
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def next_instant(self) -> float | None:
        """When the parent must look again: at the request for stacks, then at the deadline. None: no deadline."""
        good_until = self.page.read_good_until()
        if good_until is None:
            return None
        asks_at = good_until - _STACKS_S
        return asks_at if boottime() < asks_at else good_until - _MARGIN_S

    def is_past_deadline(self) -> bool:
        good_until = self.page.read_good_until()
        # Written so that what is not a number counts as passed.
        return good_until is not None and not boottime() < good_until - _MARGIN_S

    def is_up(self) -> bool:
        """Whether it has ever beat: it does once it has come up."""
        return self.page.read_beat() > 0.0

    def ask_for_stacks_when_stale(self) -> None:
        """Ask once for each deadline, in its last second, and only a node that has not beaten for a while."""
        good_until, now = self.page.read_good_until(), boottime()
        if good_until is None or now < good_until - _STACKS_S or self._asked_for == good_until:
            return
        self._asked_for = good_until
        if now - self.page.read_beat() >= _STALE_BEAT_S:
            self.ask_for_stacks()

    def ask_for_stacks(self) -> None:
        """Have it print what it is at, unless it has not come so far yet."""
        if _catches(self.pid, signal.SIGUSR2):
            self._signal(signal.SIGUSR2)

    def terminate(self) -> None:
        """Ask it to drain."""
        self._signal(signal.SIGTERM)

    def kill(self, *, as_wedged: bool = False) -> None:
        """Kill the process itself; `end` ends the rest. One killed as wedged counts as exit code 75."""
        self._signal(signal.SIGKILL)
        self.was_wedged = as_wedged

    def end(self, spare: Collection[int], given_up: Collection[int]) -> Proof:
        """End all that is left of it, itself included, and keep its exit code. Call it once, and last."""
        proof = end_all(spare, given_up=given_up, group=self.pid)
        # Where it was not reaped here it is among those left, or was reaped when it was seen to have ended.
        known: int | None = self._process.returncode
        code = proof.reaped.get(self.pid, -signal.SIGKILL if known is None else known)
        self._process.returncode = code
        self.exit_code = WEDGED if self.was_wedged else code
        self.had_started = self.is_up() or bool(self.page.read_owner())
        return proof

    def close(self) -> None:
        """Let its page go."""
        self.page.close()

    def _signal(self, number: int) -> None:
        # Not by the process object, which would reap a dead node at the first chance and free its number.
        if self._process.returncode is None:
            with suppress(OSError):
                os.kill(self.pid, number)


def _catches(pid: int, number: int) -> bool:
    """Whether the process handles the signal; one that does not would die of it, without its last words."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
