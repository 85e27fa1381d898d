"""Ending requests when the listener stops, with an answer and without a traceback."""

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BODY = json.dumps({"error": "draining", "detail": "This node is stopping; ask another one."}).encode()
_START: dict[str, Any] = {
    "type": "http.response.start",
    "status": 503,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_BODY)).encode()),
        (b"retry-after", b"2"),
        (b"connection", b"close"),
    ],
}


class CutOff:
    """The outermost ASGI application, one task of the server's a request.

    A cancelled request is over: it gets a 503 if it was not answered yet, and the cancellation ends here, since the
    server under it would log one as a crash of the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._is_stopping = False
        self._reading: set[asyncio.Task[Any]] = set()

    def stop(self) -> int:
        """Refuse what comes from now on, and cut off each request whose body has not arrived: nothing was begun for it.

        Returns:
            How many were cut off.
        """
        self._is_stopping = True
        for task in self._reading:
            task.cancel()
        return len(self._reading)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        is_answered = False
        has_body = False

        async def watched_receive() -> Message:
            nonlocal has_body
            if has_body:
                return await receive()
            self._reading.add(task)
            try:
                message = await receive()
            finally:
                self._reading.discard(task)
            has_body = not message.get("more_body", False)
            return message

        async def noted_send(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            if self._is_stopping:
                raise asyncio.CancelledError
            await self._app(scope, watched_receive, noted_send)
        except asyncio.CancelledError:
            if not is_answered:
                await send(_START)
                await send({"type": "http.response.body", "body": _BODY})
