"""The programs of seats: workers of `python` seats in this process, programs of `command` seats as real ones."""

import sys
from collections.abc import Mapping
from typing import Any

from crewlet.kit.executables import missing
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec
from crewlet.testing.inmemory.loop import CompanyLoop
from crewlet.testing.inmemory.realprogram import RealProgram
from crewlet.testing.inmemory.surroundings import Surroundings
from crewlet.testing.inmemory.worker import InMemoryWorker
from crewlet.testing.sim.clock import SimClock
from crewlet.turns.runners.python import WORKER_MODULE


class InMemoryPrograms(Programs):
    """Those of one life of a node.

    Args:
        patches: what takes the place of what in the modules of `python` seats.
    """

    def __init__(self, loop: CompanyLoop, clock: SimClock, patches: Mapping[str, Mapping[str, Any]]) -> None:
        self._loop = loop
        self._clock = clock
        self._patches = patches
        self._workers: list[InMemoryWorker] = []
        self._real: list[RealProgram] = []

    async def spawn(self, spec: ProgramSpec) -> Program:
        if _is_worker(spec):
            surroundings = Surroundings(spec.env, spec.cwd, self._patches)
            worker = InMemoryWorker(self._loop, spec.argv[4], surroundings, elapsed=self._clock.elapsed)
            self._workers.append(worker)
            return worker
        program = RealProgram(spec)
        self._real.append(program)
        return program

    async def look(self, spec: ProgramSpec) -> None:
        if not _is_worker(spec) and (problem := missing(spec.argv[0], spec.env, spec.cwd)):
            raise ProgramNotStarted(problem)

    def kill(self) -> None:
        """The node is gone, and whatever it started with it."""
        for program in (*self._workers, *self._real):
            program.kill()

    def unwind(self) -> None:
        """Leave nothing of the user's functions behind."""
        for worker in self._workers:
            worker.unwind()


def _is_worker(spec: ProgramSpec) -> bool:
    return tuple(spec.argv[:4]) == (sys.executable, "-P", "-m", WORKER_MODULE)
