"""A server that is a program: its lines, bridged to the streams that the client of `mcp` reads and writes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from crewlet.adapters.mcp.intake import MAX_MESSAGE_BYTES, Intake, NotMcp, TooMuch
from crewlet.adapters.mcp.link import Link
from crewlet.adapters.mcp.redact import Redaction
from crewlet.kit.supervise import Tasks
from crewlet.ports.programs import OutputFlood, Program, Programs, ProgramSpec, ProgramUnproven
from crewlet.ports.tools import StdioServer

_log = structlog.get_logger()

MAX_BAD_LINES: Final = 100
_NO_LIMIT = 1 << 62
_TAIL_BYTES = 1_900
_LAST_WORDS_S = 1.0


class StdioLink(Link):
    """A program in a process group of its own, that gets the environment it is given and nothing else."""

    last_words_s = 2.0

    def __init__(self, name: str, server: StdioServer, programs: Programs, redact: Redaction) -> None:
        self._name = name
        self._server = server
        self._programs = programs
        self._redact = redact
        self._program: Program | None = None
        self._watch: asyncio.Task[str] | None = None
        self._intake = Intake()
        self._is_writing = False
        self._bad_lines = 0

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[TransportStreams]:
        server = self._server
        spec = ProgramSpec(
            server.argv, server.env, server.cwd, max_line_bytes=MAX_MESSAGE_BYTES, max_output_bytes=_NO_LIMIT
        )
        # Nothing is awaited between the start and the note of it.
        program = self._program = await self._programs.spawn(spec)
        to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = Tasks(f"tool server {self._name}")
        try:
            reader = tasks.start(self._read(program, to_session), "reading", is_joined=True)
            tasks.start(self._write(program, from_session), "writing")
            self._watch = tasks.start(self._watched(program, reader), "watching", is_joined=True)
            yield read, _Outlet(write, lambda: self._is_writing)
        finally:
            await tasks.stop()
            for stream in (to_session, read, write, from_session):
                stream.close()

    async def gone(self) -> str:
        assert self._watch is not None
        return await asyncio.shield(self._watch)

    def remark(self) -> str:
        if self._program is None:
            return ""
        said = self._program.error_tail()
        tail = self._redact.tail(said, is_cut=len(said.encode()) >= _TAIL_BYTES)
        bad = f"; {self._bad_lines} of its lines were not MCP" if self._bad_lines else ""
        return f"{bad}; it said: {tail}" if tail else bad

    async def end(self, grace_s: float) -> None:
        if self._program is not None:
            if grace_s > 0:
                self._program.close_input()
            await self._program.end(grace_s=grace_s)

    async def _read(self, program: Program, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        try:
            async for line in program.lines():
                try:
                    message = await self._intake.read(line)
                except NotMcp:
                    if line.strip():
                        self._note_bad_line(len(line))
                else:
                    if message is not None:
                        await to_session.send(message)
        except anyio.BrokenResourceError:
            pass  # the session is over
        finally:
            to_session.close()

    def _note_bad_line(self, size: int) -> None:
        # What stands there is nobody's business: it may hold anything.
        if not self._bad_lines:
            _log.warning("tool_server_bad_line", server=self._name, bytes=size)
        self._bad_lines += 1
        if self._bad_lines >= MAX_BAD_LINES:
            raise TooMuch(f"{MAX_BAD_LINES} lines that are not MCP")

    async def _write(self, program: Program, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async for item in from_session:
            self._is_writing = True
            await program.write_line(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            self._is_writing = False
            self._intake.said(item.message)

    async def _watched(self, program: Program, reader: asyncio.Task[None]) -> str:
        """How the server went. What it left running goes with it: it may hold the output open for ever."""
        exited = asyncio.ensure_future(program.wait())
        try:
            await asyncio.wait({reader, exited}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                await asyncio.wait({exited}, timeout=_LAST_WORDS_S)
            else:
                with suppress(ProgramUnproven):
                    await program.end()
                await asyncio.wait({reader}, timeout=_LAST_WORDS_S)
            reader.cancel()
            return _how(reader, exited)
        finally:
            exited.cancel()


class _Outlet:
    """Where the client writes. Word that a call was given up is dropped where the server does not even read."""

    def __init__(self, stream: MemoryObjectSendStream[SessionMessage], is_writing: Callable[[], bool]) -> None:
        self._stream = stream
        self._is_writing = is_writing

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        is_courtesy = isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled"
        if not (is_courtesy and self._is_writing()):
            await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None


def _how(reader: "asyncio.Task[None]", exited: "asyncio.Future[Any]") -> str:
    broke = reader.exception() if reader.done() and not reader.cancelled() else None
    match broke:
        case OutputFlood() | TooMuch():
            return f"it wrote {broke}"
        case None:
            pass
        case _:
            _log.error("tool_server_unread", exc_info=broke)
            return "its output could not be read"
    if not exited.done():
        return "it closed its output"
    code: int = exited.result()
    return f"it was ended by signal {-code}" if code < 0 else f"it exited with code {code}"
