"""A server of a seat, kept up for one tenure: started again when it goes away, and ended for good when told to."""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import structlog

from crewlet.adapters.mcp.redact import Redaction
from crewlet.kit.backoff import Backoff
from crewlet.kit.supervise import Tasks
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.programs import Programs, ProgramUnproven
from crewlet.ports.tools import (
    ToolAnswer,
    ToolInfo,
    ToolNotCalled,
    ToolServer,
    ToolServerNotStarted,
    ToolServers,
    ToolServerSpec,
    ToolUnavailable,
)

if TYPE_CHECKING:
    from crewlet.adapters.mcp.connection import Connection

_log = structlog.get_logger()

EXTRA_MISSING: Final = "tool servers need the package mcp, which is not installed: install Crewlet with its extra `llm`"
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
"""A server that was up for so long is tried again as soon as one that never went away."""


def load_mcp() -> None:
    """Import what speaks MCP. Takes seconds the first time, and may be done in any thread.

    Raises:
        ToolServerNotStarted: it is not installed.
    """
    try:
        import_module("crewlet.adapters.mcp.connection")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("crewlet"):
            raise
        raise ToolServerNotStarted(EXTRA_MISSING) from error


class McpServers(ToolServers):
    """Makes servers that speak MCP.

    Args:
        programs: starts those that are programs.
        first_pause_s: before a server that went away is started again; doubles up to half a minute.
    """

    def __init__(self, programs: Programs, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._programs = programs
        self._first_pause_s = first_pause_s

    def server(self, spec: ToolServerSpec) -> ToolServer:
        return McpServer(spec, self._programs, self._first_pause_s)


class McpServer(ToolServer):
    """See the port. A server that answers neither a call within its time-out nor a ping after it counts as gone."""

    def __init__(self, spec: ToolServerSpec, programs: Programs, first_pause_s: float) -> None:
        self._spec = spec
        self._programs = programs
        self._redact = Redaction(spec.secrets)
        self._backoff = Backoff(first_pause_s, _LONGEST_PAUSE_S)
        self._tasks = Tasks(f"tool server {spec.name}")
        self._connection: Connection | None = None
        self._tools: Mapping[str, tuple[ToolInfo, str]] = {}
        self._trouble: str | None = "it is not started"
        self._is_ended = False

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def tools(self) -> Sequence[ToolInfo]:
        return [info for info, _ in self._tools.values()]

    @property
    def trouble(self) -> str | None:
        return self._trouble

    async def start(self) -> None:
        await asyncio.to_thread(load_mcp)
        self._tools = await self._connect()
        self._trouble = None
        self._tasks.start_eternal(self._keep_up(), "keeping up")
        _log.info("tool_server_started", server=self.name, tools=len(self._tools))
        assert self._connection is not None
        for tool, problem in self._connection.left_out.items():
            _log.warning("tool_left_out", server=self.name, tool=tool, reason=problem)

    async def call(self, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]) -> ToolAnswer:
        found = self._tools.get(tool)
        if found is None:
            raise Misuse(f"the tool server {self.name} has no tool {tool!r}")
        if self._trouble is not None or self._connection is None:
            raise ToolNotCalled(f"the tool server {self.name} cannot be called: {self._trouble}")
        try:
            return await self._connection.call(found[1], arguments, meta)
        except ToolNotCalled as error:
            raise ToolNotCalled(f"the tool server {self.name} cannot be called: {error}") from None
        except ToolUnavailable as error:
            raise ToolUnavailable(f"the tool server {self.name} gave no answer: {error}") from None

    async def end(self, *, grace_s: float = 0.0) -> None:
        self._is_ended = True
        self._trouble = "it was ended"
        await self._tasks.stop()
        if self._connection is not None:
            await self._connection.end(grace_s)

    async def _connect(self) -> Mapping[str, tuple[ToolInfo, str]]:
        """A new connection, or none.

        Raises:
            ToolServerNotStarted: nothing is left of it.
            ProgramUnproven: something may be.
        """
        from crewlet.adapters.mcp.connection import Connection

        if self._is_ended:
            raise ToolServerNotStarted(f"the tool server {self.name} was ended")
        connection = self._connection = Connection(self._spec, self._programs, self._redact)
        try:
            async with asyncio.timeout(self._spec.start_timeout_s):
                return await connection.open()
        except TimeoutError:
            why = f"it did not name its tools within {self._spec.start_timeout_s:g} s"
        except Unavailable as error:
            why = str(error)
        await connection.end(0.0)
        raise ToolServerNotStarted(f"the tool server {self.name} did not start: {why}{connection.remark()}")

    async def _keep_up(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            up_at = clock()
            assert self._connection is not None
            why = await self._connection.gone()
            if clock() - up_at >= _STEADY_S:
                self._backoff.reset()
            self._trouble = why
            await self._restart(f"{why}{self._connection.remark()}")
            self._trouble = None

    async def _restart(self, why: str) -> None:
        while True:
            pause_s = self._backoff.next_s()
            _log.warning("tool_server_gone", server=self.name, reason=why, again_in_s=pause_s)
            try:
                assert self._connection is not None
                await self._connection.end(0.0)
                self._trouble = f"{why}; it is started again within {pause_s:g} s"
                await asyncio.sleep(pause_s)
                tools = await self._connect()
            except ToolServerNotStarted as error:
                why = str(error)
            except ProgramUnproven as error:
                # A second one must not start beside what is left of the first.
                why = f"its end is not proven: {error}"
                self._trouble = why
                await asyncio.sleep(pause_s)
            else:
                self._note_restart(tools)
                return

    def _note_restart(self, tools: Mapping[str, tuple[ToolInfo, str]]) -> None:
        _log.info("tool_server_restarted", server=self.name, tools=len(tools))
        if tools.keys() != self._tools.keys():
            _log.warning(
                "tool_server_tools_changed",
                server=self.name,
                lost=sorted(self._tools.keys() - tools.keys()),
                new=sorted(tools.keys() - self._tools.keys()),
            )
