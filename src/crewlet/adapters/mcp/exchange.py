"""One request over streamable HTTP, and all that a server says in answer to it.

An answer that breaks off is taken up again where its server allows for that. Whoever runs an exchange bounds its time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import httpx2
from mcp.shared._httpx_utils import redirect_location, stream_within_origin
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from crewlet.adapters.mcp.intake import MAX_MESSAGE_BYTES, Intake, NotMcp, Pace, TooMuch

SESSION_HEADER: Final = "mcp-session-id"

RESUME_S: Final = 1.0
"""The least that is waited before an answer that broke off is taken up again, whatever its server says."""

MAX_RESUME_S: Final = 60.0
"""A server that wants to be asked for the rest later than that is not asked."""

LINE_BYTES: Final = 16
"""What a line of an event stream counts for beside its own bytes: it may be nothing but its end."""

_MAX_EVENT_ID_CHARS: Final = 1_024
_EVENT_STREAM: Final = "text/event-stream"


class Refused(Exception):
    """The answer is no: says in what words."""


class NoAnswer(Exception):
    """What came is no answer: says what it is. The request may have been acted on."""


class SessionGone(Exception):
    """The server does not know the session that was named to it."""


class Exchange:
    """Of one request, used once.

    Args:
        headers: sent with the request.
        hand_on: is given what the server says, and the session that it names; the answer is the last.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        headers: Mapping[str, str],
        intake: Intake,
        hand_on: Callable[[SessionMessage, str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._intake = intake
        self._hand_on = hand_on
        self._is_answered = False
        self._last_id = ""
        self._pause_s = RESUME_S
        self._session = ""

    async def run(self, request: JSONRPCRequest) -> None:
        """Send the request, and hand on all that comes up to its answer.

        Raises:
            Refused, NoAnswer, SessionGone: see there.
            httpx2.TransportError: the server cannot be reached, or does not speak HTTP.
        """
        body = request.model_dump_json(by_alias=True, exclude_unset=True)
        async with stream_within_origin(
            self._client, "POST", self._url, content=body, headers=self._headers
        ) as response:
            if response.status_code >= 300:
                await self._refuse(request, response)
                return
            self._session = response.headers.get(SESSION_HEADER, "")
            if not self._session.isascii():
                raise NoAnswer("it names a session that cannot be sent back to it")
            if _kind(response) == "application/json":
                await self._take(request, await _body(response))
            elif _kind(response) == _EVENT_STREAM:
                await self._take_events(request, response)
            else:
                raise NoAnswer(f"HTTP {response.status_code} of the type {_kind(response)[:100]!r}")
        while not self._is_answered:
            await self._resume(request)

    async def _resume(self, request: JSONRPCRequest) -> None:
        if not self._last_id or self._pause_s > MAX_RESUME_S:
            raise NoAnswer("its answer broke off")
        await asyncio.sleep(self._pause_s)
        headers = {**self._headers, "accept": _EVENT_STREAM, "last-event-id": self._last_id}
        async with stream_within_origin(self._client, "GET", self._url, headers=headers) as response:
            if response.status_code != 200 or _kind(response) != _EVENT_STREAM:
                raise NoAnswer(f"its answer broke off, and cannot be taken up again: HTTP {response.status_code}")
            await self._take_events(request, response)

    async def _take_events(self, request: JSONRPCRequest, response: httpx2.Response) -> None:
        response.encoding = "utf-8"
        try:
            async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
                if event.retry is not None:
                    self._pause_s = max(RESUME_S, min(event.retry, 1_000_000_000) / 1_000)
                if len(event.id) <= _MAX_EVENT_ID_CHARS and event.id.isascii() and event.id.isprintable():
                    self._last_id = event.id
                if event.event == "message" and event.data:
                    await self._take(request, event.data.encode(errors="replace"))
                if self._is_answered:
                    return
        except httpx2.SSEError as error:
            raise NoAnswer(f"an answer that cannot be read: {error}") from None
        except httpx2.TransportError:
            pass  # it broke off: see whether it can be taken up again

    async def _take(self, request: JSONRPCRequest, text: bytes) -> None:
        try:
            item = await self._intake.read(text)
        except NotMcp:
            raise NoAnswer("what came is not MCP") from None
        except TooMuch as error:
            raise NoAnswer(f"it sent {error}") from None
        if item is None:
            return
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            item.message.id = request.id
            self._is_answered = True
        await self._hand_on(item, self._session)

    async def _refuse(self, request: JSONRPCRequest, response: httpx2.Response) -> None:
        """Hand on the refusal that stands in the answer.

        Raises:
            Refused: there is none.
            SessionGone: see there.
        """
        if response.status_code == 404 and SESSION_HEADER in self._headers:
            raise SessionGone
        if (elsewhere := redirect_location(response)) is not None:
            raise Refused(f"its redirect to {elsewhere} is not followed")
        if _kind(response) == "application/json":
            try:
                await self._take(request, await _body(response))
            except NoAnswer:
                pass  # the status says as much
        if not self._is_answered:
            raise Refused(f"HTTP {response.status_code}")


class Bounds:
    """What each answer passes before it is read.

    Attributes:
        pace: of all that the server says.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    async def look(self, response: httpx2.Response) -> None:
        """See an answer before its body is read."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if _kind(response) == _EVENT_STREAM:
            response.stream = _Paced(response.stream, self._pace)
        else:
            response.stream = _Bounded(response.stream)


class _Paced(httpx2.AsyncByteStream):
    """An event stream, of which each event is bounded, and the whole is not."""

    def __init__(self, body: httpx2.AsyncByteStream, pace: Pace) -> None:
        self._body = body
        self._pace = pace

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            await self._pace.charge(len(chunk) + LINE_BYTES * (chunk.count(b"\n") + chunk.count(b"\r")))
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


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


async def _body(response: httpx2.Response) -> bytes:
    try:
        return await response.aread()
    except httpx2.StreamError as error:
        raise NoAnswer(str(error)) from None


def _kind(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()
