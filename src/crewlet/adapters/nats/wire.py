"""What the server sends, taken apart: messages here, and everything else by the client library's own parser.

The library's parser tries an expression for each kind of line, and moves all that was read with every message. Nearly
all that a node reads is messages that lie whole in what was read.
"""

from collections.abc import Awaitable, Callable

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

Message = tuple[int, bytes, bytes, bytes, bytes]
"""Subscription, subject, reply, payload and headers."""


class WireReader(Parser):
    """The parser of one client, in the place of the library's.

    Args:
        client: told of what is no message.
        hear: told of each message at once; False leaves it to `process`. It must not block.
        process: told of the messages that are left to it.
    """

    def __init__(
        self,
        client: object,
        hear: Callable[[int, bytes, bytes, bytes, bytes], bool],
        process: Callable[[int, bytes, bytes, bytes, bytes], Awaitable[None]],
    ) -> None:
        super().__init__(client)  # pyright: ignore[reportUnknownMemberType]
        self._hear = hear
        self._process = process

    def reset(self) -> None:
        """The connection is another: what was read of the old one is nothing to this."""
        super().reset()
        self._kept = bytearray()
        self._wanted = 0

    async def parse(self, data: bytes = b"") -> None:
        """Tell of everything that lies whole in what was read, and keep the rest.

        Raises:
            ProtocolError: that is nothing that a server says.
        """
        kept = self._kept
        if kept:
            kept += data
            if len(kept) < self._wanted:
                return
            data, self._wanted = bytes(kept), 0
            kept.clear()
        begins, ends = 0, len(data)
        while begins < ends and (line_ends := data.find(b"\r\n", begins)) >= 0:
            if not data.startswith((b"MSG ", b"HMSG "), begins):
                line, begins = data[begins : line_ends + 2], line_ends + 2
                await super().parse(line)
            else:
                message, after = _message(data, begins, line_ends)
                if message is None:
                    self._wanted = after - begins
                    break
                begins = after
                if not self._hear(*message):
                    await self._process(*message)
            if kept is not self._kept:
                return  # the connection broke meanwhile
        kept += data[begins:]


def _message(data: bytes, begins: int, line_ends: int) -> tuple[Message | None, int]:
    """The message whose line begins and ends there, None when it is not whole yet, and where it ends."""
    try:
        word, subject, sid, *replies, size = data[begins:line_ends].split()
        start = line_ends + 2
        body = start + int(replies.pop()) if word == b"HMSG" else start
        stop = start + int(size)
        number = int(sid)
        if not start <= body <= stop:
            raise ValueError
    except (ValueError, IndexError) as error:
        raise ProtocolError("nats: malformed MSG") from error
    if stop + 2 > len(data):
        return None, stop + 2
    return (number, subject, replies[0] if replies else b"", data[body:stop], data[start:body]), stop + 2
