"""The search for seeds that catch a planted bug."""

from dataclasses import dataclass, replace

from crewlet.testing.sim.mutants.planting import planted
from crewlet.testing.sim.world import SAFETY, SimOptions, SimReport, simulate


@dataclass(frozen=True, slots=True)
class Catch:
    """Where a planted bug is caught.

    Attributes:
        options: the simulation.
        code: its exit code.
        promise: what its finding begins with.
        seeds: of so many, from the pinned one on, the first that finds anything must find it: every change of
            the code moves what happens when.
    """

    options: SimOptions
    code: int = SAFETY
    promise: str = ""
    seeds: int = 10


def hunt(name: str, options: SimOptions, seeds: range) -> SimReport | None:
    """The first of these seeds that catches a planted bug."""
    with planted(name):
        for seed in seeds:
            report = simulate(replace(options, seed=seed))
            if report.code:
                return report
    return None
