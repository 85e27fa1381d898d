"""The worker's end of the pipes to its node: one JSON object a line, both ways.

Two descriptors of its own carry it, so that neither a print nor a child process can get into it. Requests are answered
in the order in which they were written, whichever threads wrote them.
"""

import json
import os
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, cast

MAX_LINE_BYTES = 1_000_000
"""Of one message to the node, which takes 1 MiB a line."""

Message = dict[str, Any]

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Refused(Exception):
    """What was asked cannot be done, and asking again would not help: there is no such seat, or it is too large."""


class Fenced(Exception):
    """This process may not act for the seat any more. Stop; whatever is half done is the next owner's to find."""


class Exchange(ABC):
    """What is said in one direction and answered in the other, whatever carries the lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Future[Message]] = deque()
        self._turn: str | None = None

    @abstractmethod
    def write(self, line: bytes) -> None:
        """Hand a line to the node, with its newline. Called by one thread at a time."""

    def elapsed(self) -> float:
        """Now, on the clock of `Term.good_until`."""
        return time.clock_gettime(_CLOCK)

    def begin_turn(self, turn: str) -> None:
        """From here on the messages of that turn are taken."""
        with self._lock:
            self._turn = turn

    def end_turn(self, ending: Message) -> None:
        """Say how the turn ended. Nothing of it is written after that, whatever still runs here."""
        line = _packed(ending)
        with self._lock:
            self._turn = None
            self.write(line)

    def tell(self, message: Message) -> None:
        """Tell the node something outside any turn."""
        with self._lock:
            self.write(_packed(message))

    def say(self, turn: str, message: Message) -> None:
        """Tell the node something that is not answered.

        Raises:
            Fenced: that turn is over.
            Refused: it is too long.
            TypeError, ValueError: it is not JSON.
        """
        line = _packed(message)
        with self._lock:
            self._check(turn)
            self.write(line)

    def ask(self, turn: str, message: Message) -> "Future[Message]":
        """Ask the node something. The answer may be left alone.

        Raises:
            As `say`.
        """
        line = _packed(message)
        answer = self._awaited()
        with self._lock:
            self._check(turn)
            self._waiting.append(answer)
            self.write(line)
        return answer

    def answered(self, message: Message) -> None:
        """The node has answered the oldest question."""
        answer = self._waiting.popleft()
        if answer.set_running_or_notify_cancel():
            answer.set_result(message)

    def _awaited(self) -> "Future[Message]":
        return Future()

    def _check(self, turn: str) -> None:
        if turn != self._turn:
            raise Fenced("the turn is over")


class Link(Exchange):
    """What this process and its node say to each other.

    Args:
        reading, writing: descriptors that nothing else uses.
    """

    def __init__(self, reading: int, writing: int) -> None:
        super().__init__()
        self._reading = reading
        self._writing = writing
        self._starts: SimpleQueue[Message] = SimpleQueue()
        self._is_usable = True
        os.register_at_fork(after_in_child=self._abandon)

    @classmethod
    def take_over(cls) -> "Link":
        """Make the standard streams the link's own. What is printed from now on goes to standard error."""
        link = cls(os.dup(0), os.dup(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        if hasattr(sys.stdout, "reconfigure"):
            cast(Any, sys.stdout).reconfigure(line_buffering=True)
        return link

    def listen(self) -> None:
        """Read what the node says, in a thread of its own. When the node is gone, so is this process."""
        threading.Thread(target=self._read, name="crewlet-link", daemon=True).start()

    def next_turn(self) -> Message:
        """Wait for the start line of a turn. From here on its messages are taken."""
        start = self._starts.get()
        self.begin_turn(start["turn_id"])
        return start

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._writing, left) :]

    def _check(self, turn: str) -> None:
        if not self._is_usable:
            raise RuntimeError("a process that the seat's worker forked cannot act for the seat")
        super()._check(turn)

    def _read(self) -> None:
        code = 1
        try:
            with os.fdopen(self._reading, "rb") as lines:
                for line in lines:
                    self._hear(json.loads(line))
            code = 0
        except BaseException:  # noqa: BLE001 -- without this thread nobody here would ever be answered again
            traceback.print_exc()
        finally:
            os._exit(code)

    def _hear(self, message: Message) -> None:
        if "turn_id" in message:
            self._starts.put(message)
        else:
            self.answered(message)

    def _abandon(self) -> None:
        """This is a fork of the worker: it must not speak in the seat's name, nor keep the node waiting."""
        self._lock = threading.Lock()
        self._is_usable = False
        os.close(self._writing)
        os.close(self._reading)


def _packed(message: Message) -> bytes:
    line = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(line) > MAX_LINE_BYTES:
        raise Refused(f"this has {len(line)} bytes, at most {MAX_LINE_BYTES} are taken at once")
    return line + b"\n"
