"""Whole fleets in one process on virtual time, with seeded faults, judged by what really happened.

Belongs here: the simulated world, the faults, and the judge of the promises.
Does not: any copy of the code that it tries; every node runs the real one.
"""

from crewlet.testing.sim.faults import BY_NAME, KINDS
from crewlet.testing.sim.world import CRASH, LIVENESS, SAFETY, SimOptions, SimReport, simulate

__all__ = ["BY_NAME", "CRASH", "KINDS", "LIVENESS", "SAFETY", "SimOptions", "SimReport", "simulate"]
