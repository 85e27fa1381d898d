"""What the server sends is told the same as by the client library's parser, however it was cut on the way."""

import asyncio
from typing import Any

import pytest
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from crewlet.adapters.nats.wire import WireReader

_STREAM = (
    b"PING\r\n"
    b"MSG a.b 1 5\r\nhello\r\n"
    b"MSG a.c 12 re.ply 0\r\n\r\n"
    b"+OK\r\n"
    b"HMSG d 3 12 17\r\nNATS/1.0\r\n\r\nMSG x\r\n"
    b'INFO {"client_id": 7}\r\n'
    b"HMSG e 4 to.me 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n"
    b"PONG\r\n"
    b"-ERR 'Permissions Violation'\r\n"
    b"MSG f 1 20\r\nHMSG y 1 2 2\r\nPING\r\n\r\n"
)


class Heard:
    """A client, as far as a parser needs one. Subscription 1 is left to be processed."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []
        self.processed: list[bytes] = []

    def hear(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        if sid != 1:
            self.all.append(("message", sid, subject, reply, data, headers))
        return sid != 1

    async def process(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.processed.append(subject)
        await self._process_msg(sid, subject, reply, data, headers)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        await asyncio.sleep(0)
        self.all.append(("message", sid, subject, reply, data, headers or b""))

    async def _process_err(self, said: str) -> None:
        self.all.append(("error", said))

    async def _process_ping(self) -> None:
        self.all.append(("ping",))

    async def _process_pong(self) -> None:
        self.all.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.all.append(("info", info))


def reader(heard: Heard) -> WireReader:
    return WireReader(heard, heard.hear, heard.process)


async def told_by_the_library() -> list[tuple[Any, ...]]:
    heard = Heard()
    await Parser(heard).parse(_STREAM)
    assert len(heard.all) == 9
    return heard.all


async def test_a_stream_is_told_the_same_wherever_it_was_cut() -> None:
    expected = await told_by_the_library()
    for cut in range(len(_STREAM) + 1):
        heard = Heard()
        wire = reader(heard)
        await wire.parse(_STREAM[:cut])
        await wire.parse(_STREAM[cut:])
        assert heard.all == expected, f"cut at {cut}"
        assert heard.processed == [b"a.b", b"f"]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 50])
async def test_a_stream_is_told_the_same_in_pieces(length: int) -> None:
    heard = Heard()
    wire = reader(heard)
    for begins in range(0, len(_STREAM), length):
        await wire.parse(_STREAM[begins : begins + length])
    assert heard.all == await told_by_the_library()


async def test_a_message_that_comes_in_many_pieces_is_put_together_once() -> None:
    body = bytes(range(256)) * 8192
    sent = b"MSG big 2 %d\r\n%b\r\nPING\r\n" % (len(body), body)
    heard = Heard()
    wire = reader(heard)
    for begins in range(0, len(sent), 4096):
        await wire.parse(sent[begins : begins + 4096])
    assert heard.all == [("message", 2, b"big", b"", body, b""), ("ping",)]


async def test_what_is_whole_waits_for_nothing_though_a_longer_one_came_before() -> None:
    heard = Heard()
    wire = reader(heard)
    for piece in (b"MSG big 2 100\r\n", b"x" * 100 + b"\r\nMS", b"G small 2 1\r\ny\r\nPI", b"NG\r\n"):
        await wire.parse(piece)
    assert heard.all[1:] == [("message", 2, b"small", b"", b"y", b""), ("ping",)]


@pytest.mark.parametrize(
    "said",
    [
        b"MSG a\r\n",
        b"MSG a x 1\r\nb\r\n",
        b"MSG a 2 -4\r\nbody\r\n",
        b"HMSG a 2 9 4\r\nbody\r\n",
        b"HMSG a 2 4\r\nbody\r\n",
        b"HELLO\r\n",
    ],
)
async def test_what_no_server_says_is_an_error(said: bytes) -> None:
    heard = Heard()
    with pytest.raises(ProtocolError):
        await reader(heard).parse(b"PING\r\n" + said)
    assert heard.all == [("ping",)]


async def test_nothing_of_a_broken_connection_is_told_after_it() -> None:
    """An error line has the client reconnect: what was read behind it, or before it in part, is of the old one."""
    heard = Heard()
    wire = reader(heard)

    async def reconnect(said: str) -> None:
        wire.reset()

    heard._process_err = reconnect  # type: ignore[method-assign]
    await wire.parse(b"-ERR 'Stale Connection'\r\nMSG late 2 1\r\nx\r\n")
    await wire.parse(b"MSG half 2 100\r\nxxx")
    wire.reset()
    await wire.parse(b"PING\r\n")
    assert heard.all == [("ping",)]
