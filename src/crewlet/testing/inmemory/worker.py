"""The worker of a `python` seat without its process: the user's function under virtual time.

It says to its node what a worker says, line by line, and is started, killed and replaced as one. What it lacks is in
docs/how-to/testing-your-seats.md.
"""

import asyncio
import itertools
import json
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from crewlet.agent.link import Exchange, Message
from crewlet.agent.turn import SyncTurn, Turn
from crewlet.agent.worker import described, is_async, raised
from crewlet.ports.programs import Program
from crewlet.testing.inmemory.baton import Baton, BatonFuture
from crewlet.testing.inmemory.loop import CompanyLoop, UserProcess
from crewlet.testing.inmemory.surroundings import Surroundings
from crewlet.testing.sim.loop import PROCESS

_TIDY_S = 1.0
_KILLED = -9
_REAL_SLEEP = time.sleep
_pids = itertools.count(1)


class InMemoryWorker(Program):
    """One life of a worker; see the port.

    Args:
        target: `module:function`.
        elapsed: the node's clock.
    """

    def __init__(
        self, loop: CompanyLoop, target: str, surroundings: Surroundings, *, elapsed: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._target = target
        self._surroundings = surroundings
        surroundings.sleep = self._sleep
        self._pid = next(_pids)
        self.process = UserProcess(f"worker {self._pid} of {target}", surroundings)
        self._context = copy_context()
        self._context.run(PROCESS.set, self.process)
        self._link = _Lines(self._say, elapsed)
        self._said: deque[bytes] = deque()
        self._heard = asyncio.Event()
        self._starts: deque[Message] = deque()
        self._stirred = asyncio.Event()
        self._code: asyncio.Future[int] = loop.create_future()
        self._baton: Baton | None = None
        loop.create_task(self._serve(), name=self.process.name, context=self._context)

    @property
    def pid(self) -> int:
        return self._pid

    async def write_line(self, line: bytes) -> None:
        if self._code.done():
            return
        message: Message = json.loads(line)
        if "turn_id" in message:
            self._starts.append(message)
        else:
            self._link.answered(message)
        self._stirred.set()

    def close_input(self) -> None:
        """A worker's node closes it by ending it."""

    async def lines(self) -> AsyncIterator[bytes]:
        while True:
            while self._said:
                yield self._said.popleft()
            if self._code.done():
                return
            self._heard.clear()
            await self._heard.wait()

    def error_bytes(self) -> int:
        return 0

    def error_tail(self, since: int = 0) -> str:
        del since
        return ""  # what it prints, the tests' runner shows

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def end(self, *, grace_s: float = 0.0) -> None:
        del grace_s
        self.kill()

    def kill(self) -> None:
        """End it between two steps: not even its `finally` blocks run."""
        if self.process.is_running:
            self._loop.kill(self.process)
        self._exit(_KILLED)

    def unwind(self) -> None:
        """Give back the thread of a function that was killed, or is left. Its `finally` blocks run now."""
        if self._baton is not None and not self._baton.is_done:
            with self._surroundings:
                self._baton.kill()

    def _say(self, line: bytes) -> None:
        self._said.append(line.rstrip(b"\n"))
        self._heard.set()

    def _exit(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)
        self._heard.set()

    async def _serve(self) -> None:
        try:
            function = self._load()
        except Exception as error:  # noqa: BLE001 -- whatever the user's module does while it is loaded
            traceback.print_exception(error)
            self._link.tell({"broken": {"detail": described(error)}})
            self._exit(1)
            return
        self._link.tell({"ready": {"v": 1}})
        goes_on = True
        while goes_on:
            start = await self._next_start()
            self._link.begin_turn(start["turn_id"])
            try:
                ending, goes_on = await self._work(function, start)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 -- the user's function may raise what it likes
                ending, goes_on = raised(error)
            self._link.end_turn(ending)
        self._exit(1)

    def _load(self) -> Callable[[Any], Any]:
        name, _, path = self._target.partition(":")
        found: Any = self._surroundings.load(name)
        for part in path.split("."):
            found = getattr(found, part)
        if not callable(found):
            raise TypeError(f"{self._target} is a {type(found).__name__}, not a function")
        return found

    async def _next_start(self) -> Message:
        while not self._starts:
            self._stirred.clear()
            await self._stirred.wait()
        return self._starts.popleft()

    async def _work(self, function: Callable[[Any], Any], start: Message) -> tuple[Message, bool]:
        if is_async(function):
            turn = Turn(self._link, start)
            own = asyncio.current_task()
            try:
                return turn.ending(await function(turn)), True
            finally:
                # What it left running would act for a seat whose turn is over.
                left = {task for task in self.process.tasks if task is not own}
                for task in left:
                    task.cancel()
                if left:
                    await asyncio.wait(left, timeout=_TIDY_S)
        plain = SyncTurn(self._link, start)
        return plain.ending(await self._stepped(lambda: function(plain))), True

    async def _stepped(self, call: Callable[[], object]) -> object:
        """Run a plain function, handing it the baton whenever something has come for it."""
        baton = self._baton = self._link.baton = Baton(call)
        try:
            while True:
                baton.step()
                if baton.is_done:
                    break
                self._stirred.clear()
                await self._stirred.wait()
        finally:
            self._link.baton = None
        if baton.error is not None:
            raise baton.error
        return baton.result

    def _sleep(self, seconds: float) -> None:
        """`time.sleep` for the user's code: virtual in the thread of a plain function."""
        baton = self._baton
        if baton is None or threading.current_thread() is not baton.thread:
            _REAL_SLEEP(seconds)
            return
        until = self._loop.time() + seconds
        self._loop.call_at(until, self._stirred.set, context=self._context)
        while self._loop.time() < until:
            baton.pause()


class _Lines(Exchange):
    """What a worker says, handed over as lines."""

    def __init__(self, write: Callable[[bytes], None], elapsed: Callable[[], float]) -> None:
        super().__init__()
        self._hand_over = write
        self._elapsed = elapsed
        self.baton: Baton | None = None

    def write(self, line: bytes) -> None:
        self._hand_over(line)

    def elapsed(self) -> float:
        return self._elapsed()

    def _awaited(self) -> "Future[Message]":
        return BatonFuture(self.baton) if self.baton is not None else Future()
