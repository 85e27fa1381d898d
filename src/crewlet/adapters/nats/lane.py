"""The requests of one bucket, so many at once.

Whoever waits for a turn has sent nothing yet. Without a limit ten thousand writes of one moment would be counted out
while they merely stand in line at the broker, and be sent again on top.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from nats import errors

from crewlet.adapters.nats.connection import Connection, decode, unanswered
from crewlet.adapters.nats.translate import Answer
from crewlet.ports.cells import Admit
from crewlet.ports.clock import Clock
from crewlet.ports.errors import NotTaken

AT_ONCE = 1024

_SWEEP_S = 0.05

A = TypeVar("A", bound=Answer)


class Lane:
    """One bucket's way to the broker. First come, first served; an unanswered request holds one place till it ends."""

    def __init__(self, connection: Connection, at_once: int = AT_ONCE) -> None:
        self._connection = connection
        self._free = at_once
        self._waiting: deque[tuple[asyncio.Future[bool], float]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def clock(self) -> Clock:
        return self._connection.clock

    @property
    def breaks(self) -> int:
        """How often the connection has broken; see `Connection.breaks`."""
        return self._connection.breaks

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        wait_s: float,
        head: bytes = b"",
        admit: Admit | None = None,
    ) -> bytes:
        """Ask, and wait for the payload of one answer.

        Args:
            timeout_s: for the answer, from when it is sent.
            wait_s: for the turn before that; a twentieth of a second more or less does not count.
            head: headers as `encode_headers` makes them.
            admit: asked when its turn has come, in the step in which it is sent.

        Raises:
            NotTaken: also when its turn did not come.
            Unavailable, Misuse, NotLive: as `Connection.request`.
        """
        if self._free > 0:
            self._free -= 1
        else:
            await self._turn(subject, wait_s)
        try:
            if admit is not None:
                admit()
            return await self._connection.post(subject, payload, timeout_s=timeout_s, headers=head)
        except (errors.Error, OSError, TimeoutError) as error:
            raise unanswered(error, subject, timeout_s) from error
        finally:
            self._leave()

    def ahead(self, verb: str, body: Mapping[str, Any], *, timeout_s: float) -> asyncio.Future[bytes]:
        """Ask the JetStream API now, out of turn, and take the answer later; for who keeps few on their way.

        Raises:
            NotTaken, NotLive: it was not sent. The future raises what the client library does.
        """
        return self._connection.post(f"$JS.API.{verb}", msgspec.json.encode(body), timeout_s=timeout_s)

    async def api(
        self, verb: str, body: Mapping[str, Any], kind: type[A], *, timeout_s: float, wait_s: float | None = None
    ) -> A:
        """Ask the JetStream API. The turn is waited for as long as the answer, unless told.

        Raises:
            ApiError: a definite refusal.
            Unavailable: no answer, or a server that cannot answer now.
        """
        payload = msgspec.json.encode(body)
        wait_s = timeout_s if wait_s is None else wait_s
        answer = decode(await self.request(f"$JS.API.{verb}", payload, timeout_s=timeout_s, wait_s=wait_s), kind)
        if answer.error is not None:
            raise answer.error.as_error()
        return answer

    async def _turn(self, subject: str, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((turn, loop.time() + wait_s))
        if self._sweeping is None:
            self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop)
        try:
            has_turn = await turn
        except BaseException:
            # The turn may have come in the same moment as the cancellation.
            if not turn.cancelled() and turn.result():
                self._leave()
            raise
        if not has_turn:
            raise NotTaken(f"too much is asked of the broker at once: no turn within {wait_s:g} s")

    def _leave(self) -> None:
        while self._waiting:
            turn, _ = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass over those whose time is up. One timer for all: thousands may wait at once."""
        now = loop.time()
        for turn, until in self._waiting:
            if until <= now and not turn.done():
                turn.set_result(False)
        self._waiting = deque(one for one in self._waiting if not one[0].done())
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep, loop) if self._waiting else None
