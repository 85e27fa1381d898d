"""The three pipes of a program: bounded, fair to the loop, and closed at a known moment."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import IO

from crewlet.ports.programs import OutputFlood

_CHUNK = 65_536
_FULL_PIPE_BYTES = 1_048_576
_TAIL_BYTES = 2_000
_ERROR_BURST_BYTES = 1_048_576
_ERROR_PAUSE_S = 0.05


class OutputPipe:
    """Standard output, read only as fast as somebody asks for lines: a program that floods waits for its reader."""

    def __init__(self, pipe: IO[bytes], *, max_line_bytes: int, max_output_bytes: int) -> None:
        self._pipe = pipe
        self._max_line = max_line_bytes
        self._max_output = max_output_bytes
        self._buffer = bytearray()
        self._total = 0
        self._wake: asyncio.Future[None] | None = None
        os.set_blocking(pipe.fileno(), False)

    async def lines(self) -> AsyncIterator[bytes]:
        """Lines without their newline; a last line without one is a line too."""
        scanned = 0
        while True:
            end = self._buffer.find(b"\n", scanned)
            if end > self._max_line or (end < 0 and len(self._buffer) > self._max_line):
                raise OutputFlood(f"a line of more than {self._max_line} bytes")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                scanned = 0
                yield line
                continue
            scanned = len(self._buffer)
            if self._total > self._max_output:
                raise OutputFlood(f"more than {self._max_output} bytes of output")
            if not await self._more():
                break
        if self._buffer:
            line = bytes(self._buffer)
            self._buffer.clear()
            yield line

    def finish(self) -> None:
        """Every writer is gone: take what still lies in the pipe, and close it."""
        if self._pipe.closed:
            return
        with suppress(BlockingIOError):  # a stranger was handed the pipe and holds it open, and may go on writing
            for _ in range(_FULL_PIPE_BYTES // _CHUNK):
                if self._total > self._max_output or not self._take():
                    break
        self._close()

    async def _more(self) -> bool:
        """Wait for more in the buffer. False at the end of the output."""
        while not self._pipe.closed:
            before = self._total
            try:
                if not self._take():
                    self._close()
                    return False
            except BlockingIOError:
                await self._readable()
                if self._total != before:
                    return True
                continue
            # A pipe that is never empty must not keep the loop to itself.
            await asyncio.sleep(0)
            return True
        return False

    def _take(self) -> bool:
        chunk = os.read(self._pipe.fileno(), _CHUNK)
        self._buffer += chunk
        self._total += len(chunk)
        return bool(chunk)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        loop.add_reader(self._pipe.fileno(), _resolve, wake)
        try:
            await wake
        finally:
            self._wake = None
            if not self._pipe.closed:
                loop.remove_reader(self._pipe.fileno())

    def _close(self) -> None:
        if self._wake is not None:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            _resolve(self._wake)
        self._pipe.close()


class ErrorPipe:
    """Standard error: always read, and the last of it kept. A flood is throttled: it slows its program, nobody else."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._tail = bytearray()
        self._count = 0
        self._burst = 0
        self._resume: asyncio.TimerHandle | None = None
        os.set_blocking(pipe.fileno(), False)
        self._listen()

    def count(self) -> int:
        """How many bytes were written by now, but for what a flood keeps in the pipe."""
        if not self._pipe.closed:
            self._take()
        return self._count

    def tail(self, since: int = 0) -> str:
        """The last of it, and nothing from before the `count` that was this."""
        kept = bytes(self._tail[-_TAIL_BYTES:])
        return kept[max(0, len(kept) - (self._count - since)) :].decode("utf-8", "replace")

    def finish(self) -> None:
        """Every writer is gone: take what still lies in the pipe, and close it."""
        for _ in range(_ERROR_BURST_BYTES // _CHUNK):
            if self._pipe.closed or not self._take():
                break
        self._close()

    def _listen(self) -> None:
        self._burst = 0
        self._resume = None
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        self._take()
        if self._burst > _ERROR_BURST_BYTES and not self._pipe.closed:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._pipe.fileno())
            self._resume = loop.call_later(_ERROR_PAUSE_S, self._listen)

    def _take(self) -> bool:
        try:
            chunk = os.read(self._pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close()
        self._burst += len(chunk)
        self._count += len(chunk)
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        return bool(chunk)

    def _close(self) -> None:
        if self._pipe.closed:
            return
        if self._resume is not None:
            self._resume.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        self._pipe.close()


class InputPipe:
    """Standard input: whole lines, one at a time. A program that does not read makes its writer wait."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._turn = asyncio.Lock()
        self._wake: asyncio.Future[None] | None = None
        os.set_blocking(pipe.fileno(), False)

    async def write_line(self, line: bytes) -> None:
        """Write a line, or nothing at all if the program has closed its end.

        Cancellation: in the middle of a line the pipe is closed, because what follows would be read as its rest.
        """
        async with self._turn:
            left = memoryview(line + b"\n")
            try:
                while left and not self._pipe.closed:
                    try:
                        left = left[os.write(self._pipe.fileno(), left) :]
                    except BlockingIOError:
                        await self._writable()
            except OSError:
                self.close()
            except asyncio.CancelledError:
                if len(left) <= len(line):
                    self.close()
                raise

    def close(self) -> None:
        if self._pipe.closed:
            return
        if self._wake is not None:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())
            _resolve(self._wake)
        with suppress(OSError):
            self._pipe.close()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        loop.add_writer(self._pipe.fileno(), _resolve, wake)
        try:
            await wake
        finally:
            self._wake = None
            if not self._pipe.closed:
                loop.remove_writer(self._pipe.fileno())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
