"""Tool servers that a test starts, and sees to end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from process_kit import children, until

from crewlet.adapters.mcp import McpServers
from crewlet.adapters.process import LocalPrograms
from crewlet.ports.tools import ToolServer, ToolServerSpec


@asynccontextmanager
async def started_program(spec: ToolServerSpec, *, first_pause_s: float = 0.01) -> AsyncGenerator[ToolServer]:
    """A server that is a program, ended afterwards; nothing of it is left, dead or alive."""
    before = children()
    async with _started(spec, first_pause_s) as server:
        yield server
    assert children() <= before


@asynccontextmanager
async def started_site(spec: ToolServerSpec, *, first_pause_s: float = 0.01) -> AsyncGenerator[ToolServer]:
    """The only server of a test, which is a site, ended afterwards; no task of it is left."""
    async with _started(spec, first_pause_s) as server:
        yield server
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("tool server")])


@asynccontextmanager
async def _started(spec: ToolServerSpec, first_pause_s: float) -> AsyncGenerator[ToolServer]:
    programs = LocalPrograms()
    server = McpServers(programs, first_pause_s=first_pause_s).server(spec)
    try:
        await server.start()
        yield server
    finally:
        await server.end()
    assert programs.running == frozenset()
