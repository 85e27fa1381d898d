"""A server that is reached over streamable HTTP.

Each message is a request of its own, which ends when its time is over or nobody waits for it any more. What a server
says without being asked is not listened to: the one thing that we want to hear is the answer to a call, and that comes
where the call was made.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared._httpx_utils import stream_within_origin
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    RequestId,
)

from crewlet.adapters.mcp.exchange import SESSION_HEADER, Bounds, Exchange, NoAnswer, Refused, SessionGone
from crewlet.adapters.mcp.intake import Intake
from crewlet.adapters.mcp.link import Link
from crewlet.kit.supervise import Tasks
from crewlet.ports.tools import HttpServer

MAX_COOKIES: Final = 50
"""That are kept of a server: what balances loads before it may need some. Beyond that they are forgotten together."""

_CONNECT_S: Final = 10.0
_COURTESY_S: Final = 10.0
_GOODBYE_S: Final = 2.0
_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

_ToSession = MemoryObjectSendStream[SessionMessage | Exception]


class HttpLink(Link):
    """A site. Its headers go to its own origin only; a redirect that leads elsewhere is not followed.

    Args:
        answer_s: how long the answer to any request may take, to its last byte.
    """

    last_words_s = 0.0

    def __init__(self, name: str, server: HttpServer, answer_s: float) -> None:
        self._server = server
        self._answer_s = answer_s
        self._intake = Intake()
        self._tasks = Tasks(f"tool server {name}")
        self._asked: dict[RequestId, asyncio.Task[None]] = {}
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._session: Mapping[str, str] = {}
        self._version: Mapping[str, str] = {}

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[TransportStreams]:
        to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        async with httpx2.AsyncClient(
            headers={**self._server.headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            event_hooks={"response": [Bounds(self._intake.pace).look]},
        ) as client:
            try:
                self._tasks.start(self._send_all(client, from_session, to_session), "sending")
                yield read, write
            finally:
                await self._tasks.stop()
                for stream in (to_session, read, write, from_session):
                    stream.close()
                await self._say_goodbye(client)

    async def gone(self) -> str:
        return await asyncio.shield(self._lost)

    def remark(self) -> str:
        return ""

    async def end(self, grace_s: float) -> None:
        """Nothing here is a process of ours."""

    async def _send_all(
        self,
        client: httpx2.AsyncClient,
        from_session: MemoryObjectReceiveStream[SessionMessage],
        to_session: _ToSession,
    ) -> None:
        async for item in from_session:
            if len(client.cookies) > MAX_COOKIES:
                client.cookies.clear()
            headers = self._headers(item)
            match item.message:
                case JSONRPCRequest() as request:
                    work = self._ask(client, request, headers, to_session)
                    self._asked[request.id] = task = self._tasks.start(work, f"request {request.id}")
                    task.add_done_callback(lambda _, number=request.id: self._asked.pop(number, None))
                case JSONRPCNotification(method="notifications/initialized"):
                    await self._tell(client, item, headers)  # all that follows builds on it
                case _:
                    self._give_up(item)
                    self._tasks.start(self._tell(client, item, headers), "telling")

    def _give_up(self, item: SessionMessage) -> None:
        """End the request that nobody waits for any more, if that is what is to be told."""
        match item.message:
            case JSONRPCNotification(method="notifications/cancelled", params={"requestId": str() | int() as number}):
                if (task := self._asked.get(number)) is not None:
                    task.cancel()
            case _:
                pass

    async def _ask(
        self, client: httpx2.AsyncClient, request: JSONRPCRequest, headers: Mapping[str, str], to_session: _ToSession
    ) -> None:
        """Send one request, and hand on its answer, or why there is none."""

        async def hand_on(item: SessionMessage, session: str) -> None:
            if request.method == "initialize" and session:
                self._session = {SESSION_HEADER: session}
            await to_session.send(item)

        code = CONNECTION_CLOSED
        try:
            async with asyncio.timeout(self._answer_s):
                await Exchange(client, self._server.url, headers, self._intake, hand_on).run(request)
            return
        except anyio.BrokenResourceError:
            return  # the client is gone
        except TimeoutError:
            why = f"it did not answer within {self._answer_s:g} s"
        except Refused as refused:
            code, why = INTERNAL_ERROR, str(refused)
        except NoAnswer as error:
            why = str(error)
        except SessionGone:
            why = self._lose("it does not know our session any more")
        except Exception as error:  # noqa: BLE001 -- what a hostile answer makes of its reader is of many kinds
            why = self._lose(f"{type(error).__name__}: {error}".rstrip(": "))
        answer = JSONRPCError(jsonrpc="2.0", id=request.id, error=ErrorData(code=code, message=why))
        with suppress(anyio.BrokenResourceError):
            await to_session.send(SessionMessage(answer))

    async def _tell(self, client: httpx2.AsyncClient, item: SessionMessage, headers: Mapping[str, str]) -> None:
        """Send what has no answer. Whether it arrived shows in what follows."""
        body = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        with suppress(Exception):
            async with (
                asyncio.timeout(_COURTESY_S),
                stream_within_origin(client, "POST", self._server.url, content=body, headers=headers),
            ):
                self._intake.said(item.message)

    async def _say_goodbye(self, client: httpx2.AsyncClient) -> None:
        if not self._session or self._lost.done():
            return
        headers = {**self._session, **self._version}
        with suppress(Exception):
            async with (
                asyncio.timeout(_GOODBYE_S),
                stream_within_origin(client, "DELETE", self._server.url, headers=headers),
            ):
                pass

    def _headers(self, item: SessionMessage) -> Mapping[str, str]:
        metadata = item.metadata
        own = (metadata.headers or {}) if isinstance(metadata, ClientMessageMetadata) else {}
        if version := own.get(MCP_PROTOCOL_VERSION_HEADER):
            self._version = {MCP_PROTOCOL_VERSION_HEADER: version}
        return {**_HEADERS, **self._session, **self._version, **own}

    def _lose(self, why: str) -> str:
        if not self._lost.done():
            self._lost.set_result(why)
        return why
