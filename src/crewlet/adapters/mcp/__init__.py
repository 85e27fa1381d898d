"""Tool servers that speak MCP, as programs and over streamable HTTP.

Belongs here: connecting to them, calling them, keeping them up, and the bounds on what they may answer.
Does not: which servers a seat has, what a call means for a turn, and how a process is seen to end.

The `mcp` package is in the extra `llm`, and takes seconds to import: nothing here loads it before a server starts.
"""

from crewlet.adapters.mcp.server import McpServers, load_mcp

__all__ = ["McpServers", "load_mcp"]
