"""Sites that mean harm to the seats they serve: each case has a name, ends in its time, and costs nobody else."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import httpx2
import pytest
from hostile_kit import Listening
from process_kit import until
from site_kit import Ask, Site, json_answer, on_loopback
from structlog.testing import capture_logs
from toolserver_kit import started_site

from crewlet.adapters.mcp.intake import MAX_UNANSWERED
from crewlet.ports.tools import HttpServer, ToolServer, ToolServerNotStarted, ToolServerSpec, ToolUnavailable

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SECRET = "s3cret-of-the-house"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
NOTE = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n\n'
FINE = b'data: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"fine"}]}}\n\n'

Act = Callable[[Site, Ask], Awaitable[bool]]


@asynccontextmanager
async def _started(site: Site, *, call_s: float = 30.0, start_s: float = 30.0) -> AsyncGenerator[ToolServer]:
    async with on_loopback(site) as url:
        transport = HttpServer(url, {"Authorization": f"Bearer {SECRET}"})
        spec = ToolServerSpec("web", transport, call_s, start_s, frozenset({SECRET}))
        async with started_site(spec) as server:
            yield server


async def _told(server: ToolServer) -> str:
    """What the agent is told of a call."""
    try:
        return (await server.call("web__t", {}, meta={})).text
    except ToolUnavailable as error:
        return str(error)


def _at_call(act: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> Act:
    """Answer each call so, and close."""

    async def acts(_: Site, ask: Ask) -> bool:
        if ask.message.get("method") != "tools/call":
            return False
        await act(ask.to)
        ask.to.close()
        return True

    return acts


def _sends(answer: bytes) -> Act:
    async def act(to: asyncio.StreamWriter) -> None:
        to.write(answer)
        await to.drain()

    return _at_call(act)


def _body(content: bytes) -> Act:
    return _sends(b"%bcontent-length: %d\r\n\r\n%b" % (JSON, len(content), content))


def _hundred_megabytes(head: bytes, before: bytes, piece: bytes, after: bytes) -> Act:
    async def act(to: asyncio.StreamWriter) -> None:
        to.write(head)
        for _ in range(100_000_000 // len(piece)):
            to.write(before + piece + after)
            await to.drain()

    return _at_call(act)


PIECE = b"x" * 65_536
CHUNK = b"%x\r\n" % len(PIECE)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (_body(b"{what?"), "gave no answer: what came is not MCP"),
        (_body(b"\xff\xfe\x00"), "gave no answer: what came is not MCP"),
        (_body(b'{"jsonrpc":"2.0","method":"notifications/progress"}'), "gave no answer: its answer broke off"),
        (_body(b'{"result":{"content":[%b]}}' % b",".join([b"{}"] * 1_000_000)), "a message of more than 20000 values"),
        (_sends(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>"), "HTTP 200 of the type 'text/html'"),
        (_sends(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"), "gave no answer: HTTP 202"),
        (_sends(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"), "the server refused the call: HTTP 401"),
        (_sends(b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n"), "the server refused the call: HTTP 403"),
        (_sends(b"HTTP/1.1 302 No\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"), "is not followed"),
        (_sends(EVENTS + NOTE), "gave no answer: its answer broke off"),
        (_sends(EVENTS + b"data: {what?\n\n"), "gave no answer: what came is not MCP"),
        (_sends(EVENTS.replace(b"stream", b"stream; charset=punycode") + FINE), "fine"),
        (_hundred_megabytes(JSON + b"content-length: 99942400\r\n\r\n", b"", PIECE, b""), "more than 4194304 bytes"),
        (_hundred_megabytes(JSON + b"transfer-encoding: chunked\r\n\r\n", CHUNK, PIECE, b"\r\n"), "more than 4194304"),
        (_hundred_megabytes(EVENTS + b"data: ", b"", PIECE, b""), "exceeded the 4194304 byte limit"),
    ],
)
async def test_what_is_no_answer_has_a_name_and_the_server_stays(act: Act, says: str) -> None:
    async with _started(Site(act=act)) as server:
        for _ in range(2):
            told = await _told(server)
            assert says in told, told
        assert server.trouble is None


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.7\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: %b\r\n\r\n" % (b"h" * 1_000_000), b""],
)
async def test_what_is_not_even_http_ends_the_connection_and_another_is_made(answer: bytes) -> None:
    async with _started(Site(act=_sends(answer))) as server:
        assert "RemoteProtocolError" in await _told(server) or "ReadError" in await _told(server)
        await until(lambda: server.trouble is None)


@pytest.mark.parametrize("block", [NOTE * 600, b":\n" * 30_000, b"data: {}\r" * 10_000])
async def test_a_site_that_talks_without_end_is_read_so_slowly_that_nobody_notices(
    block: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = Listening(monkeypatch)

    def for_ever(block: bytes) -> Act:
        async def act(to: asyncio.StreamWriter) -> None:
            to.write(EVENTS)
            while True:
                to.write(block)
                await to.drain()

        return _at_call(act)

    async with _started(Site(act=for_ever(block))) as server:
        call = asyncio.create_task(_told(server))
        await listening.assert_slow()
        call.cancel()
        # Nobody waits for the rest of it, and it is not read any more.
        await until(lambda: not [task for task in asyncio.all_tasks() if "request" in task.get_name()])


async def test_a_site_that_asks_without_end_and_takes_no_answer_is_not_listened_to() -> None:
    asked = b'data: {"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{"messages":[{}]}}\n\n'
    answers: list[Ask] = []

    async def act(_: Site, ask: Ask) -> bool:
        if "method" not in ask.message and ask.method == "POST":
            answers.append(ask)
            await asyncio.sleep(600)
        if ask.message.get("method") != "tools/call":
            return False
        ask.to.write(EVENTS + b"".join(asked % number for number in range(1_000)))
        await ask.to.drain()
        return True

    async with _started(Site(act=act)) as server:
        assert "it sent more than 32 requests without taking an answer" in await _told(server)
        assert len(answers) <= MAX_UNANSWERED
        assert all("error" in ask.message for ask in answers)


async def test_an_answer_that_broke_off_is_taken_up_again_but_not_faster_than_once_a_second_nor_for_ever() -> None:
    came_at: list[float] = []
    is_fine = False

    async def act(_: Site, ask: Ask) -> bool:
        if ask.method == "GET":
            assert ask.headers["last-event-id"] == "e1"
            came_at.append(time.monotonic())
        elif ask.message.get("method") != "tools/call":
            return False
        ask.to.write(EVENTS + (FINE if is_fine and ask.method == "GET" else b"retry: 0\nid: e1\ndata:\n\n"))
        ask.to.close()
        return True

    async with _started(Site(act=act), call_s=3.5) as server:
        assert "it did not answer within 3.5 s" in await _told(server)
        assert all(later - earlier > 0.9 for earlier, later in pairwise(came_at))
        await until(lambda: not [task for task in asyncio.all_tasks() if "request" in task.get_name()])
    is_fine = True
    async with _started(Site(act=act)) as server:
        assert await _told(server) == "fine"


_REDIRECT = b"HTTP/1.1 307 There\r\ncontent-length: 9000000\r\nlocation: %b\r\n\r\n" + b"x" * 9_000_000


@pytest.mark.parametrize(
    "answer",
    [
        _REDIRECT % b"/mcp",
        _REDIRECT % b"http://[::bad",
        _REDIRECT % b"http://\xff\xfe/",
        _REDIRECT % b"ftp://127.0.0.1:1/x",
        b"HTTP/1.1 200 OK\r\ncontent-type: \xff\xfe\r\ncontent-length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
        EVENTS + b"retry: %d\nid: e1\ndata:\n\n" % 10**4_000,
        EVENTS + b"id: \xc3\xa9\ndata:\n\n",
    ],
)
@pytest.mark.parametrize("step", ["initialize", "notifications/initialized", "tools/call"])
async def test_whatever_a_site_says_no_call_waits_for_more_than_its_answer(step: str, answer: bytes) -> None:
    async def act(_: Site, ask: Ask) -> bool:
        if ask.message.get("method") == step:
            ask.to.write(answer)
            ask.to.close()
        return ask.message.get("method") == step

    with capture_logs() as logs, suppress(ToolServerNotStarted):
        async with asyncio.timeout(90), _started(Site(EVENTS + FINE, act=act), call_s=600, start_s=600) as server:
            told = await _told(server)
            assert (told == "fine") == (step == "notifications/initialized"), told
            assert told.isprintable() and "did not answer within" not in told
    assert "task_broke" not in [event["event"] for event in logs]


async def test_a_session_of_a_name_that_cannot_be_sent_back_is_named() -> None:
    async def act(_: Site, ask: Ask) -> bool:
        if ask.message.get("method") != "initialize":
            return False
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        ask.to.write(json_answer(dict(ask.message), result).replace(b"s1", b"\xe9\xff"))
        return True

    with pytest.raises(ToolServerNotStarted, match="session"):
        async with asyncio.timeout(90), _started(Site(act=act), call_s=600, start_s=600):
            pass


async def test_what_a_site_wants_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[httpx2.AsyncClient] = []
    made = httpx2.AsyncClient.__init__

    def seen(client: httpx2.AsyncClient, *args: object, **more: object) -> None:
        made(client, *args, **more)  # type: ignore[arg-type]
        clients.append(client)

    monkeypatch.setattr(httpx2.AsyncClient, "__init__", seen)

    async def act(site: Site, ask: Ask) -> bool:
        if ask.message.get("method") != "tools/call":
            return False
        cookies = b"".join(b"set-cookie: c%d-%d=%b\r\n" % (len(site.headers), n, b"x" * 400) for n in range(40))
        answer = json_answer(dict(ask.message), {"content": [{"type": "text", "text": "fine"}]})
        ask.to.write(answer.replace(b"content-type", cookies + b"content-type", 1))
        return True

    async with _started(Site(act=act)) as server:
        for _ in range(20):
            assert await _told(server) == "fine"
        (client,) = clients
        assert 0 < len(client.cookies) < 100


@pytest.mark.parametrize("step", ["initialize", "notifications/initialized", "tools/list", "tools/call"])
async def test_a_redirect_to_another_place_gets_no_secret_at_any_step(step: str) -> None:
    other = Site()
    async with on_loopback(other) as elsewhere:

        async def act(_: Site, ask: Ask) -> bool:
            if ask.message.get("method") != step:
                return False
            ask.to.write(f"HTTP/1.1 307 There\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n".encode())
            return True

        with suppress(ToolServerNotStarted):
            async with _started(Site(EVENTS + FINE, act=act)) as server:
                await _told(server)
    assert other.headers == []
