"""One connection to one server, from its start to its end. It is not repaired: `server` makes another."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from crewlet import __version__
from crewlet.adapters.mcp.answers import MAX_ANSWER_CHARS, answer_of, cut, left_out, tool_infos
from crewlet.adapters.mcp.http import HttpLink
from crewlet.adapters.mcp.redact import SHOWN_CHARS, Redaction
from crewlet.adapters.mcp.stdio import StdioLink
from crewlet.kit import lines
from crewlet.kit.supervise import Tasks
from crewlet.ports.errors import Unavailable
from crewlet.ports.programs import ProgramNotStarted, Programs, ProgramUnproven
from crewlet.ports.tools import StdioServer, ToolAnswer, ToolInfo, ToolNotCalled, ToolServerSpec, ToolUnavailable

MAX_TOOLS: Final = 256
MAX_PAGES: Final = 64
MAX_LIST_BYTES: Final = 1_048_576
_PING_S = 10.0
_END_S = 10.0
_END_POLL_S = 0.2

# What goes wrong is told here, in one place and without what was said: theirs may quote it at length.
for _name in ("mcp", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Connection:
    """Connects once. All of it lives in one task, which `end` sees end.

    Attributes:
        left_out: what is wrong with the tools that are not offered on, by their names on the server.
    """

    def __init__(self, spec: ToolServerSpec, programs: Programs, redact: Redaction) -> None:
        self.left_out: Mapping[str, str] = {}
        self._spec = spec
        self._redact = redact
        self._link = (
            StdioLink(spec.name, spec.transport, programs, redact)
            if isinstance(spec.transport, StdioServer)
            else HttpLink(spec.name, spec.transport, max(spec.call_timeout_s, spec.start_timeout_s))
        )
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[dict[str, tuple[ToolInfo, str]]] = loop.create_future()
        self._over: asyncio.Future[str] = loop.create_future()
        self._session: ClientSession | None = None
        self._host: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None
        self._tasks = Tasks(f"tool server {spec.name}")

    async def open(self) -> dict[str, tuple[ToolInfo, str]]:
        """Reach the server and ask for its tools: each under its name in the seat, with its name on the server.

        Raises:
            Unavailable: it could not be reached, or said something else.

        Cancellation: it may be half open; call `end`.
        """
        self._host = self._tasks.start(self._live(), "connection")
        await asyncio.wait({self._ready, self._host}, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise Unavailable(self._over.result())
        return self._ready.result()

    async def gone(self) -> str:
        """Wait until the connection is over. Says how."""
        return await asyncio.shield(self._over)

    def remark(self) -> str:
        """What else there is to say of it, or "". Without secrets."""
        return self._redact(self._link.remark())

    async def call(self, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> ToolAnswer:
        """Call a tool by its name on the server; see the port."""
        session, limit_s = self._session, self._spec.call_timeout_s
        if session is None:
            raise ToolNotCalled(self._over.result() if self._over.done() else "it is not connected")
        request = types.CallToolRequest(
            params=types.CallToolRequestParams.model_validate(
                {"name": tool, "arguments": dict(arguments), "_meta": dict(meta)}
            )
        )
        try:
            # Not `call_tool`: that would judge the answer by a schema of the server's making, which may take for ever.
            async with asyncio.timeout(limit_s):
                result = await session.send_request(request, types.CallToolResult)
        except TimeoutError:
            self._have_doubts()
            raise ToolUnavailable(f"it did not answer within {limit_s:g} s{self.remark()}") from None
        except MCPError as error:
            return await self._refused(error)
        except ValidationError as error:
            return ToolAnswer(f"the server answered with {error.error_count()} errors in its form", is_error=True)
        return answer_of(result, self._redact)

    async def end(self, grace_s: float) -> None:
        """End the server where it is ours, and the connection.

        Raises:
            ProgramUnproven: something is left; call again.
        """
        self._settle("it was ended")
        if self._doubt is not None:
            self._doubt.cancel()
        try:
            await self._link.end(grace_s)
        finally:
            await self._see_host_end(grace_s)

    async def _live(self) -> None:
        """The whole of the connection; the client wants to be left by the task that entered it."""
        try:
            async with (
                self._link.streams() as (read, write),
                ClientSession(
                    read, write, client_info=types.Implementation(name="crewlet", version=__version__)
                ) as session,
            ):
                watch = self._tasks.start(self._watch(), "watching")
                try:
                    await session.initialize()
                    listed = await _listed(session)
                    tools = tool_infos(self._spec.name, listed, self._redact)
                    self.left_out = left_out(listed, self._redact)
                    self._session = session
                    self._ready.set_result(tools)
                    await self.gone()
                except MCPError as error:
                    if error.error.code == types.CONNECTION_CLOSED:
                        await asyncio.wait({watch}, timeout=self._link.last_words_s)
                    raise
                finally:
                    self._session = None
                    watch.cancel()
        except Exception as error:  # noqa: BLE001 -- the client's errors are many, and each ends the connection
            self._settle(lines.one_line(self._redact(_in_words(error)), SHOWN_CHARS))
        finally:
            self._settle("the connection ended")

    async def _watch(self) -> None:
        self._settle(await self._link.gone())

    def _settle(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(why)

    async def _refused(self, error: MCPError) -> ToolAnswer:
        """An answer that says no, or what the client makes of a connection that broke."""
        if error.error.code == types.CONNECTION_CLOSED or self._over.done():
            await asyncio.wait({self._over}, timeout=self._link.last_words_s)
            why = (
                self._over.result()
                if self._over.done()
                else lines.one_line(self._redact(error.error.message), SHOWN_CHARS)
            )
            raise ToolUnavailable(f"{why}{self.remark()}")
        text = self._redact(f"the server refused the call: {error.error.message}")
        return ToolAnswer(cut(text, MAX_ANSWER_CHARS), is_error=True)

    def _have_doubts(self) -> None:
        """A call had no answer: see whether the server still answers anything, beside what else goes on."""
        if self._doubt is None or self._doubt.done():
            self._doubt = self._tasks.start(self._ping(), "ping")

    async def _ping(self) -> None:
        session = self._session
        if session is None:
            return
        limit_s = min(_PING_S, self._spec.call_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                await session.send_ping()
        except TimeoutError:
            self._settle(f"it answered neither a call nor a ping within {limit_s:g} s")
        except (MCPError, ValidationError):
            pass  # an answer, whatever it says; and one that is gone is told of elsewhere

    async def _see_host_end(self, grace_s: float) -> None:
        host = self._host
        if host is None or host.done():
            return
        await asyncio.wait({host}, timeout=max(grace_s, _END_POLL_S))
        give_up_at = asyncio.get_running_loop().time() + _END_S
        while not host.done():
            if asyncio.get_running_loop().time() > give_up_at:
                raise ProgramUnproven(f"the connection to the tool server {self._spec.name} does not end")
            host.cancel()
            await asyncio.wait({host}, timeout=_END_POLL_S)


async def _listed(session: ClientSession) -> Sequence[types.Tool]:
    tools: list[types.Tool] = []
    size = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        if len(tools) > MAX_TOOLS:
            raise Unavailable(f"it offers more than {MAX_TOOLS} tools")
        size += sum(len(tool.model_dump_json()) for tool in page.tools)
        if size > MAX_LIST_BYTES:
            raise Unavailable(f"the description of its tools is longer than {MAX_LIST_BYTES} bytes")
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise Unavailable(f"its list of tools has more than {MAX_PAGES} pages")


def _in_words(error: Exception) -> str:
    match error:
        case ExceptionGroup(exceptions=(Exception() as first, *_)):
            return _in_words(first)
        case MCPError():
            return f"it refused: {error.error.message}"
        case ValidationError():
            return f"it answered with {error.error_count()} errors in its form"
        case Unavailable() | ProgramNotStarted():
            return str(error)
        case RuntimeError():  # how the client says that it does not know the version of the protocol
            return str(error)
        case _:
            return f"{type(error).__name__}: {error}".rstrip(": ")
