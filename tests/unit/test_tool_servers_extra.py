"""Tool servers without the package that speaks MCP."""

import sys

import pytest

from crewlet.adapters.mcp import McpServers, load_mcp
from crewlet.adapters.process import LocalPrograms
from crewlet.ports.tools import StdioServer, ToolServerNotStarted, ToolServerSpec


@pytest.fixture
def without_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mcp", "mcp_types")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("crewlet.adapters.mcp.")]:
        if not name.endswith((".server", ".names", ".redact")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp_types", None)


@pytest.mark.usefixtures("without_mcp")
async def test_a_server_is_refused_in_a_sentence_that_names_the_extra() -> None:
    with pytest.raises(ToolServerNotStarted, match="not installed: install Crewlet with its extra `llm`"):
        load_mcp()
    server = McpServers(LocalPrograms()).server(ToolServerSpec("x", StdioServer(("true",))))
    with pytest.raises(ToolServerNotStarted, match="its extra `llm`"):
        await server.start()
    await server.end()
