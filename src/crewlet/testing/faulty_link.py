"""A TCP link to a broker that loses, alters and cuts what passes, whole protocol frames at a time.

Put between a client and a real server it makes the faults that real networks make rarely: an answer that is lost after
the request took effect, a request that never arrives, an error line, a sudden end.
"""

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_WITH_PAYLOAD = re.compile(rb"(?:MSG|HMSG|PUB|HPUB) ")
_REQUEST = re.compile(rb"H?PUB \S+ (_INBOX\.\S+) ")
_STORE_TIME = re.compile(rb'("(ts|time)":")(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)')
_GREETING = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'
_ANSWERED_WITHIN_S = 30.0

Judge = Callable[["Frame"], "bytes | None"]
"""Takes a frame and answers what passes in its stead: its own `raw`, other bytes, or None for nothing."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One operation of the protocol.

    Attributes:
        head: its first line, without the line end.
        body: headers and payload, of the operations that carry any.
    """

    head: bytes
    body: bytes | None = None

    @property
    def raw(self) -> bytes:
        return self.head + b"\r\n" if self.body is None else self.head + b"\r\n" + self.body + b"\r\n"

    @property
    def carries_message(self) -> bool:
        return self.body is not None

    @property
    def is_write_answer(self) -> bool:
        """Whether it is the server's answer to a stored message."""
        return self.head.startswith(b"MSG _INBOX.") and self.body is not None and b'"stream":' in self.body[:200]

    @property
    def is_write(self) -> bool:
        """Whether it is a message that a client sends to a bucket."""
        return self.head.startswith(b"HPUB $KV.")

    @property
    def inbox(self) -> bytes | None:
        """Where its answer goes, if it is a request."""
        match = _REQUEST.match(self.head)
        return match[1] if match else None

    def with_payload(self, payload: bytes) -> bytes:
        """A `MSG` frame like this one with another payload."""
        words = self.head.split(b" ")
        words[-1] = str(len(payload)).encode()
        return b" ".join(words) + b"\r\n" + payload + b"\r\n"

    def at_store_time(self, shift_s: int, *names: bytes) -> bytes:
        """The same from a store whose clock is so many seconds ahead: in answers, and in what a watch delivers.

        Args:
            names: which of an answer's fields; all by default.
        """
        words = self.head.split(b" ")
        if not names and len(words) > 4 and words[3].startswith(b"$JS.ACK."):
            place = words[3].split(b".")
            place[-2] = b"%d" % (int(place[-2]) + shift_s * 1_000_000_000)
            words[3] = b".".join(place)
            return replace(self, head=b" ".join(words)).raw
        if words[0] != b"MSG" or self.body is None:
            return self.raw

        def shifted(match: re.Match[bytes]) -> bytes:
            if names and match[2] not in names:
                return match[0]
            at = datetime.fromisoformat(match[3].decode()) + timedelta(seconds=shift_s)
            return match[1] + at.isoformat().encode()

        return self.with_payload(_STORE_TIME.sub(shifted, self.body))


@dataclass(eq=False)
class FaultyLink:
    """A proxy in front of one server, whole until told otherwise. Use as an async context manager.

    Attributes:
        server_url: where it leads.
        on_answer, on_request: judge what passes to the client and to the server.
        lost: how many frames did not pass, so far.
        held: requests that are on their way, until `deliver_held`.
    """

    server_url: str
    on_answer: Judge = lambda frame: frame.raw
    on_request: Judge = lambda frame: frame.raw
    lost: int = 0
    held: list[Frame] = field(default_factory=list[Frame])
    _port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _clients: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=5.0)
            for task in late:
                task.cancel()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def heal(self) -> None:
        """Let everything pass again."""
        self.on_answer = self.on_request = lambda frame: frame.raw

    def cut(self) -> None:
        """End every connection that runs over the link. New ones may be made."""
        for writer in list(self._writers):
            writer.transport.abort()

    def refuse(self) -> None:
        """End every connection, and let none be made until `accept`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    async def accept(self) -> None:
        """Let connections be made, at the same address as before."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    def inject(self, raw: bytes) -> None:
        """Have the server seem to say this to every client."""
        for writer in self._clients:
            writer.write(raw)

    def lose_answers(self, count: int) -> None:
        """The next answers to writes never arrive; the writes take effect."""
        self.on_answer = _first(count, lambda frame: frame.is_write_answer, lambda frame: None)

    def answer_writes(self, count: int, payload: bytes) -> None:
        """The next answers to writes say this instead; the writes take effect."""
        self.on_answer = _first(count, lambda frame: frame.is_write_answer, lambda frame: frame.with_payload(payload))

    def lose_writes(self, count: int) -> None:
        """The next writes never arrive."""
        self.on_request = _first(count, lambda frame: frame.is_write, lambda frame: None)

    def hold_requests(self, which: Callable[[Frame], bool], count: int = 1_000_000) -> None:
        """The next of these requests stay on their way, whatever becomes of the connection they were sent over."""
        self.on_request = _first(count, which, self._hold)

    async def deliver_held(self) -> None:
        """Let what was held reach the server now, in order, and wait until each request among it is answered.

        That the server has read them is not enough: it works off what is for a stream or the API in their own time.
        """
        address = urlsplit(self.server_url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            await reader.readuntil(b"\r\n")
            held, self.held = self.held, []
            inboxes = [frame.inbox for frame in held if frame.inbox]
            listening = b"".join(b"SUB %s %d\r\n" % (inbox, number) for number, inbox in enumerate(set(inboxes)))
            writer.write(_GREETING + listening + b"".join(frame.raw for frame in held) + b"PING\r\n")
            left = len(inboxes) + 1  # the answer to the PING
            async with asyncio.timeout(_ANSWERED_WITHIN_S):
                while left > 0:
                    frame = await _next(reader)
                    left -= frame.carries_message or frame.head == b"PONG"
        finally:
            writer.transport.abort()

    def shift_store_clock(self, seconds: int) -> None:
        """Have the store's clock seem so many seconds ahead of what it is (behind, if negative)."""
        self.on_answer = lambda frame: frame.at_store_time(seconds)

    def shift_store_now(self, seconds: int) -> None:
        """The same for what the store says its time is now; what was written stays where it was."""
        self.on_answer = lambda frame: frame.at_store_time(seconds, b"ts")

    def answer_pings(self) -> None:
        """Keep the clients believing that the server lives, whether it does or not."""
        self.on_request = self._pong

    def lose_everything(self) -> None:
        """No message passes in either direction, while the connection looks alive."""
        self.on_answer = self.on_request = lambda frame: None if frame.carries_message else frame.raw

    def lose_some(self, seed: int, share: float) -> None:
        """Each message is lost with this probability, in either direction."""
        dice = random.Random(seed)
        self.on_answer = self.on_request = lambda frame: (
            None if frame.carries_message and dice.random() < share else frame.raw
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        address = urlsplit(self.server_url)
        try:
            far_reader, far_writer = await asyncio.open_connection(address.hostname, address.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        self._clients.add(writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(far_reader, writer, self._judge_answer))
                group.create_task(_pump(reader, far_writer, self._judge_request))
        except* (OSError, EOFError):
            pass
        finally:
            self._writers -= ends
            self._clients.discard(writer)
            for end in ends:
                end.transport.abort()

    def _hold(self, frame: Frame) -> None:
        self.held.append(frame)

    def _pong(self, frame: Frame) -> bytes | None:
        if frame.head == b"PING":
            self.inject(b"PONG\r\n")
            return None
        return frame.raw

    def _judge_answer(self, frame: Frame) -> bytes | None:
        return self._count(self.on_answer(frame))

    def _judge_request(self, frame: Frame) -> bytes | None:
        return self._count(self.on_request(frame))

    def _count(self, passed: bytes | None) -> bytes | None:
        self.lost += passed is None
        return passed


def _first(count: int, applies: Callable[[Frame], bool], judge: Judge) -> Judge:
    """`judge` for the first `count` frames it applies to; every other passes."""
    left = count

    def judged(frame: Frame) -> bytes | None:
        nonlocal left
        if left > 0 and applies(frame):
            left -= 1
            return judge(frame)
        return frame.raw

    return judged


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, judge: Judge) -> None:
    """Raises EOFError at the end, so that both directions end together."""
    while True:
        passed = judge(await _next(reader))
        if passed is not None:
            writer.write(passed)
            await writer.drain()


async def _next(reader: asyncio.StreamReader) -> Frame:
    head = (await reader.readuntil(b"\r\n"))[:-2]
    if not _WITH_PAYLOAD.match(head):
        return Frame(head)
    return Frame(head, (await reader.readexactly(int(head.rpartition(b" ")[2]) + 2))[:-2])
