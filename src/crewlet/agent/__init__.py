"""What a Python function that is a seat works with. `docs/how-to/python-seats.md` shows how to write one.

Belongs here: the turn as that function sees it, and the process that calls it.
Does not: anything of the node. This package needs the standard library alone, so that a worker starts in no time.
"""

from crewlet.agent.turn import Fenced, Mail, Outcome, Refused, SyncTerm, SyncTurn, Term, Tool, ToolResult, Turn

__all__ = ["Fenced", "Mail", "Outcome", "Refused", "SyncTerm", "SyncTurn", "Term", "Tool", "ToolResult", "Turn"]
