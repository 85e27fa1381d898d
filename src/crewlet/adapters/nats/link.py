"""The client library's connection, with its ways of dying silently closed.

Everything that leans on the library's inside is in this one class; the tests against a faulty link hold it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import structlog
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

_NOT_IN_A_SUBJECT = re.compile(r"[ \t\r\n]")
_NO_LINE_BREAKS = {ord("\r"): " ", ord("\n"): " "}

_log = structlog.get_logger()


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Headers as they go over the wire, a line break in one as a space; empty for none."""
    if not headers:
        return b""
    lines = "".join([f"{name}: {value.translate(_NO_LINE_BREAKS)}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


class NoTls(errors.Error):
    """The server offers no TLS although it was asked for; nothing secret has been sent."""


class Link(Client):
    """A client that never gives up, sends nothing of a dead connection over the next, and needs TLS if told so."""

    def __init__(self, *, needs_tls: bool = False) -> None:
        super().__init__()
        self._needs_tls = needs_tls
        self._asked = 0
        self._is_flush_due = False
        self._answers_sid: int | None = None
        self._answers_prefix = ""

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made."""
        return self._server_info

    async def hear(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """`subscribe`, with its types known. An exception of `take` goes to the error callback."""
        return await self.subscribe(subject, cb=take)  # pyright: ignore[reportUnknownMemberType]

    async def ask(self, subject: str, payload: bytes, *, timeout_s: float, head: bytes = b"") -> Msg:
        """`request`, over the same subscription for all answers, in as few steps of the loop as there can be.

        The library's own waits with `asyncio.wait_for`, which on Python 3.11 swallows a cancellation that meets the
        answer; it keeps a place for every answer to a request that could not be sent; and it sends from one task and
        answers from another, where this writes at once and answers from the parser.

        Args:
            head: the message's headers as `encode_headers` makes them; empty is none.

        Raises:
            errors.NoRespondersError, errors.Error, TimeoutError: as `request`.
        """
        if self._answers_sid is None:
            await self._listen_for_answers()
        loop = asyncio.get_running_loop()
        self._asked += 1
        token = str(self._asked)
        answers = self._answers
        answer: asyncio.Future[Msg] = loop.create_future()
        answers[token] = answer
        timer = loop.call_later(timeout_s, _give_up, answer)
        try:
            self._post(subject, self._answers_prefix + token, payload, head)
            message = await answer
        finally:
            timer.cancel()
            answers.pop(token, None)
        if message.headers and message.headers.get("Status") == "503":
            raise errors.NoRespondersError
        return message

    async def _listen_for_answers(self) -> None:
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        self._answers_prefix = self._resp_sub_prefix.decode()
        wanted = f"{self._answers_prefix}*"
        self._answers_sid = next(sid for sid, sub in self._subs.items() if sub.subject == wanted)

    def _post(self, subject: str, reply: str, payload: bytes, head: bytes) -> None:
        """`publish` without a stop on the way to the socket.

        Raises:
            errors.Error: it was not sent.
        """
        if not subject or _NOT_IN_A_SUBJECT.search(subject):
            raise errors.BadSubjectError
        if self.is_closed:
            raise errors.ConnectionClosedError
        if not self.is_connected:
            raise errors.OutboundBufferLimitError
        size = len(head) + len(payload)
        if head:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
                subject.encode(),
                reply.encode(),
                len(head),
                size,
                head,
                payload,
            )
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), size, payload)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        self._pending.append(command)
        if not self._is_flush_due:
            # What one step of the loop asks goes out in one write: the calls into the kernel are what costs.
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._pending and self._transport is not None and self.is_connected:
            self._transport.write(b"".join(self._pending))
            self._pending = []
            self._pending_data_size = 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid != self._answers_sid:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        answer = self._answers.get(subject[len(self._answers_prefix) :].decode())
        if answer is not None and not answer.done():
            found: dict[str, str] | None = None
            if headers:
                found = await self._process_headers(headers)  # pyright: ignore[reportUnknownMemberType]
            answer.set_result(self._build_message(sid, subject, reply, data, found))

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


def _give_up(answer: asyncio.Future[Msg]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
        # Looked at here, because whoever asked may have been cancelled meanwhile.
        answer.exception()
