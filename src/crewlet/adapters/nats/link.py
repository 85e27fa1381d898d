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
from nats.js.errors import NotFoundError

from crewlet.adapters.nats.wire import WireReader

_NOT_IN_A_SUBJECT = re.compile(rb"[ \t\r\n]")
_NOBODY = b"NATS/1.0 503"
_NOTHING = b"NATS/1.0 404"
_LATE_S = 0.02
_SWEEP_S = 0.05
_FLUSH_BYTES = 64 * 1024
_FLUSH_STEPS = 3
"""What so many turns of the loop ask goes out in one write: the calls into the kernel are what costs. A loop with
nothing else to do takes them within microseconds."""
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
        self._ps = WireReader(self, self._take_message, self._process_msg)  # pyright: ignore[reportUnknownMemberType]
        self._needs_tls = needs_tls
        self.breaks = 0
        self.sent = 0
        """Messages handed to `send` and `post` so far."""
        self._asked = 0
        self._is_flush_due = False
        self._unsent = 0
        self._answers_sid: int | None = None
        self._answers_prefix = b""
        self._waits: dict[bytes, _Wait] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._takers: dict[int, Callable[[bytes, bytes, bytes, bytes], None]] = {}

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said of itself when the connection was made."""
        return self._server_info

    async def hear(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """`subscribe`, with its types known. An exception of `take` goes to the error callback."""
        return await self.subscribe(subject, cb=take)  # pyright: ignore[reportUnknownMemberType]

    async def listen(self, subject: str, take: Callable[[bytes, bytes, bytes, bytes], None]) -> int:
        """Subscribe, and be told of each message at once, from the parser: `take(subject, reply, data, headers)`.

        `take` must not block; what it raises is logged. Returns what `unlisten` and `drain_listening` take.
        """
        subscription = await self.hear(subject, _overlook)
        self._takers[subscription._id] = take  # pyright: ignore[reportPrivateUsage]
        return subscription._id  # pyright: ignore[reportPrivateUsage]

    async def unlisten(self, listening: int) -> None:
        """End it. Raises errors.Error when the server cannot be told; nothing is heard any more either way."""
        self._takers.pop(listening, None)
        subscription = self._subs.get(listening)
        if subscription is not None:
            await subscription.unsubscribe()

    async def drain_listening(self, listening: int) -> None:
        """End it once everything that the server had sent by then has been heard. Raises as `unlisten`."""
        subscription = self._subs.get(listening)
        try:
            if subscription is not None:
                await subscription.drain()
        finally:
            self._takers.pop(listening, None)
            self._subs.pop(listening, None)

    def send(self, subject: str, reply: str, payload: bytes) -> None:
        """`publish`, in order with what `post` sends.

        Raises:
            errors.Error: it was not sent.
        """
        self._send(subject.encode(), reply.encode(), payload, b"")

    def post(self, subject: str, payload: bytes, *, timeout_s: float, head: bytes = b"") -> asyncio.Future[bytes]:
        """Send a request, and have the payload of its answer later; `listen_for_answers` was awaited once before.

        The library's `request` waits with `asyncio.wait_for`, which on Python 3.11 swallows a cancellation that meets
        the answer; it keeps a place for every answer to a request that could not be sent; and it sends from one task
        and answers from another, where this is answered from the parser.

        Args:
            timeout_s: until the answer is a TimeoutError, or a twentieth of a second later.
            head: the message's headers as `encode_headers` makes them; empty is none.

        Raises:
            errors.Error: it was not sent. Of the answer: as `request`.
        """
        if self._answers_sid is None:
            raise errors.BadSubscriptionError
        self._asked += 1
        token = b"%d" % self._asked
        self._send(subject.encode(), self._answers_prefix + token, payload, head)
        loop = asyncio.get_running_loop()
        wait = self._waits[token] = _Wait(loop, timeout_s)
        if self._sweeping is None:
            self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop, loop.time() + _SWEEP_S)
        return wait.answer

    def _sweep(self, loop: asyncio.AbstractEventLoop, due_at: float) -> None:
        """End the waits whose time is up. One timer for all of them, since nearly every one is answered in time."""
        now = loop.time()
        for token, wait in list(self._waits.items()):
            if wait.ends_at <= now and wait.has_ended(now, now - due_at):
                del self._waits[token]
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop, now + _SWEEP_S) if self._waits else None

    async def listen_for_answers(self) -> None:
        """Subscribe to the answers."""
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        self._answers_prefix = bytes(self._resp_sub_prefix)
        wanted = f"{self._answers_prefix.decode()}*"
        self._answers_sid = next(sid for sid, sub in self._subs.items() if sub.subject == wanted)

    def _send(self, subject: bytes, reply: bytes, payload: bytes, head: bytes) -> None:
        """`publish` without a stop on the way."""
        if not subject or _NOT_IN_A_SUBJECT.search(subject):
            raise errors.BadSubjectError
        if not self.is_connected:
            raise errors.ConnectionClosedError if self.is_closed else errors.OutboundBufferLimitError
        size = len(head) + len(payload)
        if head:
            sizes = (len(head), size)
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, *sizes, head, payload)
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, size, payload)
        self.sent += 1
        self._pending.append(command)
        self._unsent += len(command)
        if self._unsent >= _FLUSH_BYTES:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._flush_soon, loop, _FLUSH_STEPS)

    def _flush_soon(self, loop: asyncio.AbstractEventLoop, steps_left: int) -> None:
        if steps_left > 1:
            loop.call_soon(self._flush_soon, loop, steps_left - 1)
            return
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        self._unsent = 0
        if self._pending and self._transport is not None and self.is_connected:
            self._transport.write(b"".join(self._pending))
            self._pending = []
            self._pending_data_size = 0

    async def _flush_pending(self, force_flush: bool = False) -> None:
        """Write at once what the library has to send.

        Its own way is a queue that is full while a broker takes nothing: then it waits there, also with its pings, so
        that the silence is never noticed; and a cancellation that meets it there is lost.
        """
        self._flush()

    def _take_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        """Take an answer, or what a listener waits for, in the step in which it was read. False: it is neither."""
        if sid == self._answers_sid:
            wait = self._waits.pop(subject[len(self._answers_prefix) :], None)
            if wait is None:
                return False
            _settle(wait.answer, data, headers)
            return True
        take = self._takers.get(sid)
        if take is None:
            return False
        try:
            take(subject, reply, data, headers)
        except Exception:  # noqa: BLE001
            # It would end the reading of this connection, unnoticed.
            _log.exception("broker_listener_failed", subject=subject.decode(errors="replace"))
        return True

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
        self.breaks += 1
        self._pending.clear()
        self._pending_data_size = 0
        ours = list(self._waits.values())
        self._waits.clear()
        for waiting in [*(wait.answer for wait in ours), *self._answers.values()]:
            if not waiting.done():
                waiting.set_exception(errors.ConnectionReconnectingError())
                # Looked at here, because whoever asked may have been cancelled meanwhile.
                waiting.exception()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._needs_tls and not info.get("tls_required"):
            raise NoTls("nats: the server does not require TLS")
        await super()._process_info(info, initial_connection)


def _settle(answer: asyncio.Future[bytes], data: bytes, headers: bytes) -> None:
    if answer.done():
        return
    if headers.startswith((_NOBODY, _NOTHING)):
        answer.set_exception(errors.NoRespondersError() if headers.startswith(_NOBODY) else NotFoundError())
        answer.exception()
    else:
        answer.set_result(data)


async def _overlook(message: Msg) -> None:
    """Of what came before its listener was there."""


class _Wait:
    """One answer that is waited for, and for how long. Time in which this process came to nothing counts only once.

    When the loop was busy past the end, the answer may well lie unread in the socket; a request sent again would only
    add to what there is to do.
    """

    __slots__ = ("_is_patient", "answer", "ends_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.answer: asyncio.Future[bytes] = loop.create_future()
        self.ends_at = loop.time() + timeout_s
        self._is_patient = True

    def has_ended(self, now: float, late_s: float) -> bool:
        """Whether the end has come; the wait is then over. `late_s` is for how long the loop came to nothing."""
        if late_s > _LATE_S and self._is_patient and not self.answer.done():
            self._is_patient = False
            self.ends_at = now + late_s
            return False
        if not self.answer.done():
            self.answer.set_exception(TimeoutError())
            # Looked at here, because whoever asked may have been cancelled meanwhile.
            self.answer.exception()
        return True
