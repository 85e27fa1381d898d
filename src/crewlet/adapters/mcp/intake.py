"""What a server says, on its way in: bounded, paced, and without what nobody here listens to.

All of it is read on the loop that renews the leases. So what can be made of a message is bounded before anything is
made of it, and a server that talks without end is read so slowly that nobody else notices.
"""

import asyncio
from typing import Final

from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from crewlet.adapters.mcp import offers

MAX_MESSAGE_BYTES: Final = 4_194_304
"""Of one message from a server. A longer one is not taken in."""

MAX_VALUES: Final = 20_000
"""In one message: what a few bytes each are on the wire becomes objects, and errors by the dozen where they have the
wrong form. More than an answer can show of itself, and than any list of tools has."""

MAX_UNANSWERED: Final = 32
"""Requests of a server that it has not taken the answers to."""

BURST_BYTES: Final = 16_777_216
PACE_BYTES_S: Final = 1_048_576
"""How fast a server is listened to once it has said `BURST_BYTES` in a row."""

MESSAGE_BYTES: Final = 2_048
VALUE_BYTES: Final = 128
"""What a message, and a value in it, count for beside its own bytes: that is what they cost to read."""


class NotMcp(Exception):
    """It is no message."""


class TooMuch(Exception):
    """More than is taken from any server: says of what."""


class Pace:
    """Lets through what comes, and holds up who brings too much of it."""

    def __init__(self, *, burst: float = BURST_BYTES, per_s: float = PACE_BYTES_S) -> None:
        self._clock = asyncio.get_running_loop().time
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = self._clock()

    async def charge(self, cost: float) -> None:
        """Take it, and wait until it is paid."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - cost
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


class Intake:
    """Of one connection.

    Attributes:
        pace: of all that the server says.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self._unanswered = 0

    async def read(self, text: bytes) -> SessionMessage | None:
        """One message, for the client; None where there is nothing in it for anybody.

        Raises:
            NotMcp: it is no message.
            TooMuch: the connection should end.
        """
        values = values_in(text)
        if values > MAX_VALUES:
            raise TooMuch(f"a message of more than {MAX_VALUES} values")
        await self.pace.charge(len(text) + MESSAGE_BYTES + VALUE_BYTES * values)
        try:
            message = jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValidationError:
            raise NotMcp from None
        if isinstance(message, JSONRPCNotification):
            return None
        if isinstance(message, JSONRPCResponse):
            message = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=offers.fitted(message.result))
        if isinstance(message, JSONRPCRequest):
            # Whatever it asks for, it is told that there is none: what it says of it is not looked at.
            message = JSONRPCRequest(jsonrpc="2.0", id=message.id, method=message.method)
            self._unanswered += 1
            if self._unanswered > MAX_UNANSWERED:
                raise TooMuch(f"more than {MAX_UNANSWERED} requests without taking an answer")
        return SessionMessage(message)

    def said(self, message: JSONRPCMessage) -> None:
        """The server has taken a message of ours."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._unanswered -= 1


def values_in(text: bytes) -> int:
    """How many values a text of JSON can have at most. Exact enough where they are many; in a few steps of C."""
    found = _marks(text)
    if found <= MAX_VALUES:
        return found
    outside_of_strings = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    return _marks(b"".join(outside_of_strings))


def _marks(text: bytes) -> int:
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
