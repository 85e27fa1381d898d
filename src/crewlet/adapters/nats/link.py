"""The client library's connection, with its ways of dying silently closed.

Everything that leans on the library's inside is in this one class; the tests against a faulty link hold it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

_log = structlog.get_logger()


class NoTls(errors.Error):
    """The server offers no TLS although it was asked for; nothing secret has been sent."""


class Link(Client):
    """A client that never gives up, sends nothing of a dead connection over the next, and needs TLS if told so."""

    def __init__(self, *, needs_tls: bool = False) -> None:
        super().__init__()
        self._needs_tls = needs_tls
        self._asked = 0

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made."""
        return self._server_info

    async def hear(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """`subscribe`, with its types known. An exception of `take` goes to the error callback."""
        return await self.subscribe(subject, cb=take)  # pyright: ignore[reportUnknownMemberType]

    async def ask(self, subject: str, payload: bytes, *, timeout_s: float, headers: dict[str, str] | None) -> Msg:
        """`request`, over the same subscription for all answers.

        The library's own waits with `asyncio.wait_for`, which on Python 3.11 swallows a cancellation that meets the
        answer, and it keeps a place for every answer to a request that could not be sent.

        Raises:
            errors.NoRespondersError, errors.Error, TimeoutError: as `request`.
        """
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        self._asked += 1
        token = str(self._asked)
        answers = self._answers
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        answers[token] = answer
        try:
            await self.publish(subject, payload, reply=self._resp_sub_prefix.decode() + token, headers=headers)
            async with asyncio.timeout(timeout_s):
                message = await answer
        finally:
            answers.pop(token, None)
        if message.headers and message.headers.get("Status") == "503":
            raise errors.NoRespondersError
        return message

    @property
    def _answers(self) -> dict[str, asyncio.Future[Msg]]:
        return cast("dict[str, asyncio.Future[Msg]]", self._resp_map)  # pyright: ignore[reportUnknownMemberType]

    def cut(self) -> None:
        """Drop the socket at once: a polite close waits for a peer that may be frozen."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _process_err(self, err_msg: str) -> None:
        """An error line costs this connection, never the client: the library would close itself for good."""
        if "permissions violation" in err_msg.lower():
            await super()._process_err(err_msg)
            return
        await self._error_cb(errors.Error(f"nats: {err_msg.strip(chr(39))}"))
        await self._process_op_err(errors.Error(err_msg))

    async def _attempt_reconnect(self) -> None:
        self._drop_unsent()
        self.cut()
        while True:
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001
                # The library's loop expects socket errors only; any other would end it, and the client with it.
                _log.warning("broker_reconnect_failed", error=repr(error))
                await asyncio.sleep(1.0)
            else:
                return

    def _drop_unsent(self) -> None:
        """Forget what the dead connection did not send, and answer who waits on it: at once, not at a time-out."""
        self._pending.clear()
        self._pending_data_size = 0
        for waiting in list(self._answers.values()):
            if not waiting.done():
                waiting.set_exception(errors.ConnectionReconnectingError())
                # Looked at here, because whoever asked may have been cancelled meanwhile.
                waiting.exception()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._needs_tls and not info.get("tls_required"):
            raise NoTls("nats: the server does not require TLS")
        await super()._process_info(info, initial_connection)
