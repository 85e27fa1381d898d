"""Serving in the node's loop."""

import asyncio
import logging
import signal
import socket
from typing import Any

import pytest
from stub_node import StubNode

from crewlet.kit.listening import ListenFailed
from crewlet.web.app import create_app
from crewlet.web.server import GRACE_S, serve

LIMIT_S = 60.0
"""How long anything may take. Never a verdict on speed."""


async def slow_app(scope: Any, receive: Any, send: Any) -> None:
    """Answers `/slow` after a while and `/never` not at all."""
    if scope["path"] == "/never":
        await asyncio.Event().wait()
    await asyncio.sleep(0.3 if scope["path"] == "/slow" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


class Arrivals:
    """What is served by another app, counted as it arrives."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._count = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._count += 1
        await self._app(scope, receive, send)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self._count < count:
                await asyncio.sleep(0.005)


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    try:
        return await asyncio.wait_for(reader.read(), LIMIT_S)
    finally:
        writer.close()


async def test_the_real_port_and_address_are_known() -> None:
    server = await serve(slow_app, "127.0.0.1", 0)
    assert server.port > 0 and server.url == f"http://127.0.0.1:{server.port}"
    assert (await ask(server.port, "/")).endswith(b"done")
    await server.stop()


async def test_the_nodes_signal_handlers_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    server = await serve(slow_app, "127.0.0.1", 0)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    await server.stop()


async def test_a_request_under_way_is_finished_before_the_stop() -> None:
    app = Arrivals(slow_app)
    server = await serve(app, "127.0.0.1", 0)
    asking = asyncio.create_task(ask(server.port, "/slow"))
    await app.until(1)
    await server.stop()
    assert (await asking).endswith(b"done")


async def test_a_stopped_server_listens_no_more_and_can_be_stopped_again() -> None:
    server = await serve(slow_app, "127.0.0.1", 0)
    await server.stop()
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await ask(server.port, "/")


async def half_a_request(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /seats/writer/mail HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f'{head}Content-Length: 1000\r\n\r\n{{"body": "ha'.encode())
    await writer.drain()
    return reader, writer


async def test_slow_senders_neither_hold_the_stop_up_nor_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = Arrivals(create_app(StubNode()))
    server = await serve(app, "127.0.0.1", 0)
    clients = [await half_a_request(server.port) for _ in range(20)]
    await app.until(len(clients))
    with caplog.at_level(logging.DEBUG):
        async with asyncio.timeout(LIMIT_S):
            await server.stop()
            answers = [await reader.read() for reader, _ in clients]
    for _, writer in clients:
        writer.close()
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 503 Service Unavailable"] * len(clients)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_request_that_never_ends_is_cut_off_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    app = Arrivals(slow_app)
    server = await serve(app, "127.0.0.1", 0)
    asking = asyncio.create_task(ask(server.port, "/never"))
    await app.until(1)
    async with asyncio.timeout(GRACE_S + LIMIT_S):
        await server.stop()
    assert (await asking).startswith(b"HTTP/1.1 503 ")
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_port_in_use_is_told_with_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed) as failed:
            await serve(slow_app, "127.0.0.1", port)
    assert str(failed.value) == (
        f"The API cannot listen on 127.0.0.1:{port} (Address already in use); set api.port to auto or to a free port."
    )


async def test_a_host_that_is_no_address_is_told() -> None:
    with pytest.raises(ListenFailed, match=r"api.host 'no.such.host.invalid' is not an address of this machine"):
        await serve(slow_app, "no.such.host.invalid", 0)
