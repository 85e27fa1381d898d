"""A company on three nodes, harmed on purpose, that proves from the evidence that it survived.

Belongs here: starting the fleet, its mail, the faults, the evidence and the judgement on it.
Does not: any seat's work (`crewlet.examples`), any part of a node.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command was asked for.

    Attributes:
        json: print one JSON object as the last line of standard output; progress then goes to standard error.
        docs: the folder with the documents; None looks for them.
        keep: leave the fleet's folder, with logs, evidence and reports.
        seed: decides which node gets which fault; None draws one and says it.
    """

    json: bool = False
    docs: Path | None = None
    keep: bool = False
    seed: int | None = None


def run(options: DemoOptions) -> int:
    """Run the demonstration; call it from the main thread of a process that does nothing else.

    Returns:
        0 when everything was proven, 1 when anything was wrong, 130 after Ctrl+C.
    """
    from crewlet.testing.demo.command import demonstrate  # the judgement alone needs none of it

    return demonstrate(options)
