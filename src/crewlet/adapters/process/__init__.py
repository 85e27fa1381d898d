"""Programs as real operating-system processes.

Belongs here: starting a program, its pipes, and ending every process that came of it.
Does not: what a program says or means (that is a runner's), and any rule about seats.
"""

from crewlet.adapters.process.marks import MarkBook
from crewlet.adapters.process.programs import LocalPrograms

__all__ = ["LocalPrograms", "MarkBook"]
