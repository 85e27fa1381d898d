"""Signals between the nodes of one process."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import structlog

from crewlet.kit.supervise import Tasks
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

T = TypeVar("T")

_log = structlog.get_logger()


class LocalSignals(Signals):
    """Everybody who was given this instance."""

    def __init__(self) -> None:
        self._hearers: dict[str, dict[object, Hear]] = {}
        self._answerers: dict[str, dict[object, Answer]] = {}
        self._tasks = Tasks("signals")
        self._is_stopped = False

    def broadcast(self, name: str, data: bytes) -> None:
        self._require_live()
        check_signal(name, data)
        loop = asyncio.get_running_loop()
        for key in self._hearers.get(name, {}):
            loop.call_soon(self._tell, name, key, data)

    async def listen(self, name: str, hear: Hear) -> Forget:
        self._require_live()
        check_signal(name)
        return _entered(self._hearers, name, hear)

    async def ask(self, name: str, data: bytes, *, timeout_s: float, enough: int = 1) -> Sequence[bytes]:
        self._require_live()
        check_signal(name, data)
        check_enough(enough)
        answers: list[bytes] = []
        is_over = asyncio.Event()
        answering = [
            self._tasks.start(self._answer(name, answer, data, answers), f"answer to {name}")
            for answer in self._answerers.get(name, {}).values()
        ]
        left = len(answering)

        def ended(task: asyncio.Task[None]) -> None:
            nonlocal left
            del task
            left -= 1
            if left == 0 or len(answers) >= enough:
                is_over.set()

        for task in answering:
            task.add_done_callback(ended)
        if answering:
            try:
                async with asyncio.timeout(timeout_s):
                    await is_over.wait()
            except TimeoutError:
                pass
        return tuple(answers[:enough])

    async def serve(self, name: str, answer: Answer) -> Forget:
        self._require_live()
        check_signal(name)
        return _entered(self._answerers, name, answer)

    async def stop(self) -> None:
        """Hear and answer nothing more, and end the answers that are being made. Harmless when repeated."""
        self._is_stopped = True
        self._hearers.clear()
        self._answerers.clear()
        await self._tasks.stop()

    def _require_live(self) -> None:
        if self._is_stopped:
            raise NotLive("the signals were stopped")

    def _tell(self, name: str, key: object, data: bytes) -> None:
        hear = self._hearers.get(name, {}).get(key)
        if hear is None:
            return
        try:
            hear(data)
        except Exception:  # noqa: BLE001 -- whoever hears it, the sender and the others go on
            _log.exception("signal_hearing_broke", signal=name)

    async def _answer(self, name: str, answer: Answer, data: bytes, answers: list[bytes]) -> None:
        try:
            answered = await answer(data)
        except Exception:  # noqa: BLE001 -- as above
            _log.exception("signal_answer_broke", signal=name)
            return
        if answered is None:
            return
        if len(answered) > MAX_SIGNAL_BYTES:
            _log.warning("signal_too_large", signal=name, bytes=len(answered))
            return
        answers.append(answered)


def _entered(books: dict[str, dict[object, T]], name: str, entry: T) -> Forget:
    key = object()
    books.setdefault(name, {})[key] = entry

    async def forget() -> None:
        books.get(name, {}).pop(key, None)

    return forget
