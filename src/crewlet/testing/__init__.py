"""What others test their own seats and adapters with: twins, contracts, fleets on real parts, a company in memory.

Belongs here: shipped, public test equipment. `docs/how-to/testing-your-seats.md` shows the company in memory.
Does not: tests of this project.

Nothing is loaded before it is asked for: pytest imports this package for everybody who has Crewlet installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crewlet.testing.inmemory.asserting import Posted
    from crewlet.testing.inmemory.company import AsyncInMemoryCompany, NotIdle
    from crewlet.testing.inmemory.plain import InMemoryCompany
    from crewlet.testing.inmemory.records import Run, ToolCall
    from crewlet.testing.inmemory.tools import Tool
    from crewlet.testing.modelserver import Call, Refuse, Say

__all__ = [
    "AsyncInMemoryCompany",
    "Call",
    "InMemoryCompany",
    "NotIdle",
    "Posted",
    "Refuse",
    "Run",
    "Say",
    "Tool",
    "ToolCall",
]

_HOMES = {
    "AsyncInMemoryCompany": "inmemory.company",
    "Call": "modelserver",
    "InMemoryCompany": "inmemory.plain",
    "NotIdle": "inmemory.company",
    "Posted": "inmemory.asserting",
    "Refuse": "modelserver",
    "Run": "inmemory.records",
    "Say": "modelserver",
    "Tool": "inmemory.tools",
    "ToolCall": "inmemory.records",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
