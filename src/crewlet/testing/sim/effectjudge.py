"""Programs and effects, judged: what works for a seat ends before its lease goes, and a repeated call tells that it is.

A call is the same at a re-run when the same work makes the same call for the same time; then, and only then, it carries
the same idempotency key. It carries the epoch of its own tenure, and a turn that broke after it does not run again.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from crewlet.testing.sim.facts import RunningTurn
from crewlet.testing.sim.loop import Process
from crewlet.turns.effects import canonical
from crewlet.turns.toolbox import EPOCH, IDEMPOTENCY_KEY, RESOURCE

_THAW_S = 1.5
"""So long after a thaw what a process keeps may not have been ended yet."""


class EffectJudge:
    """Knows the programs that run, and the calls that were made.

    Args:
        fail: called with a promise and how it was broken.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._children: dict[str, dict[str, Process]] = {}
        self._keys: dict[str, tuple[object, ...]] = {}
        self._calls: dict[tuple[object, ...], str] = {}
        self._given_up: dict[tuple[str, str], tuple[RunningTurn, float]] = {}
        self._tried: set[tuple[str, str]] = set()

    def started(self, process: Process, handle: str) -> None:
        self._children.setdefault(handle, {})[process.name] = process

    def ended(self, process: Process, handle: str) -> None:
        self._children.get(handle, {}).pop(process.name, None)

    def died(self, process: Process) -> None:
        """A process is gone, and its programs with it."""
        for processes in self._children.values():
            processes.pop(process.name, None)

    def released(self, process: Process, handle: str) -> None:
        """A process gives a seat back whose lease is still its own."""
        if process.name in self._children.get(handle, ()):
            self._fail("P1", f"{process.name} gave {handle} back while a program of it ran")

    def was_taken(self, owner: str, handle: str) -> None:
        """A new tenure of a seat begins."""
        now = asyncio.get_running_loop().time()
        for process in self._children.get(handle, {}).values():
            if process.is_running and now > process.thawed_at + _THAW_S:
                self._fail("P1", f"{owner} took {handle} while a program of it ran at {process.name}")

    def called(self, turn: RunningTurn, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        """A call of a turn is made."""
        same = (turn.handle, turn.work, tool, canonical(arguments))
        ordinal = turn.calls.get(same, 0)
        turn.calls[same] = ordinal + 1
        call, key = (*same, ordinal), str(meta.get(IDEMPOTENCY_KEY))
        if self._calls.setdefault(call, key) != key:
            self._fail("P8", f"{turn.owner} made a call of {turn.handle} again, under another key")
        if self._keys.setdefault(key, call) != call:
            self._fail("P8", f"{turn.owner} made a call of {turn.handle} under the key of another")
        if (meta.get(RESOURCE), meta.get(EPOCH)) != (f"seat:{turn.handle}", turn.epoch):
            self._fail("P8", f"{turn.owner} called a tool for {turn.handle} under the term of another tenure")

    def begins(self, turn: RunningTurn) -> None:
        """A turn begins to run."""
        for trigger in turn.triggers:
            given_up = self._given_up.get((turn.handle, trigger))
            if given_up is None or (turn.handle, trigger) in self._tried:
                continue
            before, ended_at = given_up
            if before.process.is_running and before.process.thawed_at < ended_at:
                self._fail(
                    "P5", f"{turn.owner} runs {trigger} of {turn.handle} again, which broke after an effect or panicked"
                )

    def ends(self, turn: RunningTurn) -> None:
        """A turn is done with."""
        if turn.is_exempt and turn.ended in ("broke", "panicked"):
            now = asyncio.get_running_loop().time()
            self._given_up.update({(turn.handle, trigger): (turn, now) for trigger in turn.triggers})

    def recording(self, handle: str, trigger: str) -> None:
        """A process tries to record mail as finished with."""
        self._tried.add((handle, trigger))
