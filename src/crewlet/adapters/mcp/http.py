"""A server that is reached over streamable HTTP: the transport of `mcp`, with bounds, and told when it fails."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from crewlet.adapters.mcp.link import MAX_MESSAGE_BYTES, Link
from crewlet.ports.tools import HttpServer

_CONNECT_S: Final = 10.0
_READ_S: Final = 300.0
_SESSION_HEADER = "mcp-session-id"


class HttpLink(Link):
    """A site. Its headers go to its own origin only; a redirect that leads elsewhere is not followed."""

    def __init__(self, server: HttpServer, call_timeout_s: float) -> None:
        self._server = server
        self._read_s = max(_READ_S, 2 * call_timeout_s)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._refusal = ""

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[TransportStreams]:
        async with (
            httpx2.AsyncClient(
                headers={**self._server.headers, "accept-encoding": "identity"},
                timeout=httpx2.Timeout(_CONNECT_S, read=self._read_s),
                event_hooks={"response": [self._look]},
            ) as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def gone(self) -> str:
        return await asyncio.shield(self._lost)

    def remark(self) -> str:
        return self._refusal

    async def end(self, grace_s: float) -> None:
        """Nothing here is a process of ours."""

    async def _look(self, response: httpx2.Response) -> None:
        """See each answer before its body is read."""
        if response.request.method == "POST":
            code = response.status_code
            self._refusal = f"; it answered with HTTP {code}" if code >= 400 else ""
            if code == 404 and _SESSION_HEADER in response.request.headers and not self._lost.done():
                self._lost.set_result("it does not know our session any more")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            # Of an event stream each event is bounded, and the whole is not.
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for")


class _Bounded(httpx2.AsyncByteStream):
    """The body of one answer, up to the limit."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._body:
            total += len(chunk)
            if total > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"an answer of more than {MAX_MESSAGE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()
