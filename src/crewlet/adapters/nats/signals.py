"""Signals as plain messages of the broker, kept by no stream."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import structlog
from nats import errors

from crewlet.adapters.nats.connection import Connection
from crewlet.kit.supervise import Tasks
from crewlet.mail import topics
from crewlet.ports.errors import NotLive
from crewlet.ports.signals import (
    MAX_SIGNAL_BYTES,
    Answer,
    Forget,
    Hear,
    Signals,
    check_enough,
    check_signal,
)

ANSWERS_AT_ONCE = 64

_NOBODY = b"NATS/1.0 503"

Take = Callable[[bytes, bytes, bytes, bytes], None]

_log = structlog.get_logger()


class NatsSignals(Signals):
    """Everybody on the broker behind a connection. `stop` before the connection is closed."""

    def __init__(self, connection: Connection) -> None:
        self._link = connection.client
        self._tasks = Tasks("signals")
        self._answering = 0
        self._is_stopped = False

    def broadcast(self, name: str, data: bytes) -> None:
        check_signal(name, data)
        self._require_live()
        self._send(topics.signal(name), "", data)

    async def listen(self, name: str, hear: Hear) -> Forget:
        check_signal(name)

        def take(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            del subject, reply, headers
            if self._is_welcome(name, data):
                try:
                    hear(data)
                except Exception:  # noqa: BLE001 -- it would end the reading of the connection
                    _log.exception("signal_hearing_broke", signal=name)

        return await self._listen(topics.signal(name), take)

    async def ask(self, name: str, data: bytes, *, timeout_s: float, enough: int = 1) -> Sequence[bytes]:
        check_signal(name, data)
        check_enough(enough)
        answers: list[bytes] = []
        is_over = asyncio.Event()

        def take(subject: bytes, reply: bytes, answer: bytes, headers: bytes) -> None:
            del subject, reply
            if headers.startswith(_NOBODY):
                is_over.set()
            elif self._is_welcome(name, answer):
                answers.append(answer)
                if len(answers) >= enough:
                    is_over.set()

        inbox = self._link.new_inbox()
        forget = await self._listen(inbox, take)
        try:
            if self._send(topics.question(name), inbox, data):
                async with asyncio.timeout(timeout_s):
                    await is_over.wait()
        except TimeoutError:
            pass
        finally:
            await forget()
        return tuple(answers[:enough])

    async def serve(self, name: str, answer: Answer) -> Forget:
        check_signal(name)

        def take(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            del subject, headers
            if not reply or not reply.isascii() or not self._is_welcome(name, data):
                return
            if self._answering >= ANSWERS_AT_ONCE:
                _log.warning("signal_question_dropped", signal=name, answering=self._answering)
                return
            self._answering += 1
            task = self._tasks.start(self._answer(name, answer, data, reply.decode()), f"answer to {name}")
            task.add_done_callback(self._answered)

        return await self._listen(topics.question(name), take)

    async def stop(self) -> None:
        """Hear and answer nothing more. Harmless when repeated."""
        self._is_stopped = True
        await self._tasks.stop()

    async def _answer(self, name: str, answer: Answer, data: bytes, reply: str) -> None:
        try:
            answered = await answer(data)
        except Exception:  # noqa: BLE001 -- one question that breaks ends no other
            _log.exception("signal_answer_broke", signal=name)
            return
        if answered is None:
            return
        if len(answered) > MAX_SIGNAL_BYTES:
            _log.warning("signal_too_large", signal=name, bytes=len(answered))
            return
        self._send(reply, "", answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        del task
        self._answering -= 1

    def _send(self, subject: str, reply: str, data: bytes) -> bool:
        """Put it on the wire, or drop it: over the server's limit it would cost the connection."""
        try:
            if len(data) > self._link.max_payload:
                _log.warning("signal_too_large", subject=subject, bytes=len(data), limit=self._link.max_payload)
                return False
            self._link.send(subject, reply, data)
        except errors.Error as error:
            _log.debug("signal_not_sent", subject=subject, error=repr(error))
            return False
        return True

    async def _listen(self, subject: str, take: Take) -> Forget:
        self._require_live()

        def take_while_live(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            if not self._is_stopped:
                take(subject, reply, data, headers)

        try:
            listening = await self._link.listen(subject, take_while_live)
        except errors.Error as error:
            raise NotLive("the connection to the broker is closed") from error

        async def forget() -> None:
            with contextlib.suppress(errors.Error, OSError):
                await self._link.unlisten(listening)

        return forget

    def _is_welcome(self, name: str, data: bytes) -> bool:
        if len(data) <= MAX_SIGNAL_BYTES:
            return True
        _log.warning("signal_ignored", signal=name, bytes=len(data), reason="too large")
        return False

    def _require_live(self) -> None:
        if self._is_stopped:
            raise NotLive("the signals were stopped")
