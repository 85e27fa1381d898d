"""The program of a `command` seat: a real process, for whose words virtual time waits.

While it computes, no virtual time passes. While it waits for an answer, virtual time goes on. One that says nothing for
some real seconds is taken to wait for something else: then virtual time goes on too, up to the seat's own limit.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import IO, Any, cast

from crewlet.ports.programs import OutputFlood, Program, ProgramNotStarted, ProgramSpec

_PATIENCE_S = 5.0
_EXIT_S = 2.0
_LOOK_S = 0.02
_TAIL_BYTES = 2_000
_ASKING = frozenset({"send", "call", "check"})


class RealProgram(Program):
    """One running program; see the port. It is ended with its process group: what leaves that is not found."""

    def __init__(self, spec: ProgramSpec) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in `kill`
        try:
            self._process = subprocess.Popen(
                list(spec.argv),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=spec.cwd,
                env=dict(spec.env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._errors.close()
            raise ProgramNotStarted(f"{spec.argv[0]} did not start: {error}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._spec = spec
        self._read = b""
        self._total = 0
        self._lines: deque[bytes] = deque()
        self._unanswered = 1  # it has not heard of its turn yet
        self._is_silent = self._is_closed = self._is_over = False
        self._changed = asyncio.Event()
        self._tail = b""
        self._error_bytes = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def write_line(self, line: bytes) -> None:
        if not self._is_over:
            with contextlib.suppress(OSError, ValueError):
                self._input.write(line + b"\n")
            self._unanswered = max(0, self._unanswered - 1)
            self._stir()

    def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()
        self._is_closed = True
        self._stir()

    async def lines(self) -> AsyncIterator[bytes]:
        while True:
            self._take(0.0)
            while self._lines:
                line = self._lines.popleft()
                self._unanswered += _asks(line)
                yield line
            if self._is_closed or self._is_over:
                return
            if self._unanswered or self._is_silent:
                self._changed.clear()
                await self._changed.wait()
                self._is_silent = False
            elif not self._take(_PATIENCE_S) and not self._is_closed:
                self._is_silent = True

    def error_bytes(self) -> int:
        self._read_errors()
        return self._error_bytes

    def error_tail(self, since: int = 0) -> str:
        self._read_errors()
        return self._tail[max(0, len(self._tail) - (self._error_bytes - since)) :].decode(errors="replace")

    def _read_errors(self) -> None:
        if not self._errors.closed:
            size = self._error_bytes = os.fstat(self._errors.fileno()).st_size
            self._tail = os.pread(self._errors.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))

    async def wait(self) -> int:
        while True:
            if self._is_closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_EXIT_S)
            if (code := self._process.poll()) is not None:
                return code
            self._changed.clear()
            await self._changed.wait()

    async def end(self, *, grace_s: float = 0.0) -> None:
        del grace_s
        self.kill()

    def kill(self) -> None:
        """End it and its group, and see it end."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._read_errors()
        for stream in (self._input, self._output, self._errors):
            with contextlib.suppress(OSError):
                stream.close()
        self._stir()

    def _stir(self) -> None:
        self._changed.set()

    def _take(self, patience_s: float) -> bool:
        """Take what it has said, or says within so many real seconds. False when it is silent."""
        give_up_at = time.monotonic() + patience_s
        while not (self._is_closed or self._is_over):
            ready, _, _ = select.select([self._output], [], [], min(_LOOK_S, patience_s))
            if ready:
                data = os.read(self._output.fileno(), 65_536)
                self._hear(data)
                if not data or self._lines:
                    return True
            elif self._process.poll() is not None and patience_s:
                # It has exited, and left something that holds its output open.
                self._stir()
                return False
            elif time.monotonic() >= give_up_at:
                return False
        return False

    def _hear(self, data: bytes) -> None:
        if not data:
            if self._read:  # a last line without its end is one too, as on a node
                self._lines.append(self._read)
            self._is_closed = True
            self._stir()
            return
        self._total += len(data)
        *whole, self._read = (self._read + data).split(b"\n")
        if max(map(len, (*whole, self._read))) > self._spec.max_line_bytes:
            raise OutputFlood(f"a line of more than {self._spec.max_line_bytes} bytes")
        if self._total > self._spec.max_output_bytes:
            raise OutputFlood(f"more than {self._spec.max_output_bytes} bytes of output")
        self._lines.extend(whole)


def _asks(line: bytes) -> bool:
    with contextlib.suppress(ValueError):
        message: Any = json.loads(line)
        return isinstance(message, dict) and not _ASKING.isdisjoint(cast("dict[str, Any]", message))
    return False
