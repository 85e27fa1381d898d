"""Planted bugs: each a small replacement in the real code, which some seed of the simulator must catch.

Belongs here: one function a bug, a module a subject, and the search for seeds, `python -m crewlet.testing.sim.mutants`.
They prove the simulator, not the code.
"""

from crewlet.testing.sim.mutants import (
    admission,
    claiming,
    effects,
    leases,
    lives,
    mailboxes,
    ownership,
    pausing,
    schedules,
    turns,
)
from crewlet.testing.sim.mutants.hunting import Catch, hunt
from crewlet.testing.sim.mutants.planting import names, planted

__all__ = [
    "Catch",
    "admission",
    "claiming",
    "effects",
    "hunt",
    "leases",
    "lives",
    "mailboxes",
    "names",
    "ownership",
    "pausing",
    "planted",
    "schedules",
    "turns",
]
