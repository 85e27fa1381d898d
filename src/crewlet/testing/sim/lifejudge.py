"""P10, judged: a process that has stopped turning is ended when its leases run out, and one that turns never is."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from crewlet.kit.beats import Lag
from crewlet.testing.sim.facts import RunningTurn
from crewlet.testing.sim.loop import Process
from crewlet.testing.sim.parents import Guard, SimDeadline

_THAW_S = 3.0
"""So long after a thaw a process may not have noticed yet what time it is."""


class LifeJudge:
    """Knows what each process has told its parent, if it has one.

    Args:
        fail: called with a promise and how it was broken.
    """

    def __init__(self, ttl_s: float, fail: Callable[[str, str], None]) -> None:
        self._ttl_s = ttl_s
        self._fail = fail
        self._lives: dict[str, tuple[SimDeadline, Guard]] = {}
        self._slots: dict[str, int] = {}
        self._turns: Counter[str] = Counter()

    def begun(self, process: Process, deadline: SimDeadline, guard: Guard, slots: int) -> None:
        self._lives[process.name] = deadline, guard
        self._slots[process.name] = slots

    def died(self, process: Process) -> None:
        self._lives.pop(process.name, None)
        self._slots.pop(process.name, None)
        self._turns.pop(process.name, None)

    def turns(self, process: Process, change: int) -> None:
        """So many turns more, or fewer, run at a process."""
        self._turns[process.name] += change
        if self._turns[process.name] > self._slots.get(process.name, self._turns[process.name]):
            self._fail("P1", f"{process.name} runs {self._turns[process.name]} turns at once")

    def acts(self, process: Process, handle: str) -> None:
        """A turn of the seat begins, or a call of it leaves."""
        told = self._lives.get(process.name)
        if told is not None and told[0].is_past(process.thawed_at):
            self._fail("P10", f"{process.name} acts for {handle}, and has told its parent that it would not")

    def was_taken(self, handle: str, owner: str, turns: Iterable[RunningTurn]) -> None:
        """A new tenure of the seat begins while these turns have not ended."""
        for turn in turns:
            told = self._lives.get(turn.owner)
            if turn.owner != owner and told is not None and told[1] is Guard.PARENT and not turn.process.is_running:
                self._fail(
                    "P10", f"{owner} took {handle}, and {turn.owner}, which stands still in a turn, has not ended"
                )

    def ended(self, process: Process) -> None:
        """A parent ends its node, by what the node has told."""
        if process.is_running and asyncio.get_running_loop().time() - process.thawed_at > _THAW_S:
            self._fail("P10", f"{process.name} is turning, and has its parent end it")

    def lags(self, process: Process, lag: Lag | None) -> None:
        """What the watchdog of a running process would see. One that stood still within a TTL is not judged."""
        if lag is None or lag.seconds <= self._ttl_s:
            return
        if asyncio.get_running_loop().time() - process.thawed_at > self._ttl_s:
            self._fail("P10", f"{process.name} is turning, and its {lag.name} has not beaten for {lag.seconds:.1f} s")
