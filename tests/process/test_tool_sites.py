"""Tool servers over streamable HTTP: secrets in headers only, and what a site may not do to us."""

import socket
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from process_kit import python, until
from site_kit import Site, on_loopback
from structlog.testing import capture_logs
from toolserver_kit import started_site

from crewlet.ports.tools import HttpServer, ToolServer, ToolServerNotStarted, ToolServerSpec, ToolUnavailable
from crewlet.supervisor.broker import free_port

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SECRET = "s3cret-of-the-house"


def _started(url: str, *, call_s: float = 30.0, start_s: float = 60.0) -> AbstractAsyncContextManager[ToolServer]:
    """A site's server, ended afterwards."""
    transport = HttpServer(url, {"Authorization": f"Bearer {SECRET}"})
    spec = ToolServerSpec("web", transport, call_s, start_s, frozenset({SECRET, f"Bearer {SECRET}"}))
    return started_site(spec, first_pause_s=0.05)


_FINE = b'data: {"jsonrpc": "2.0", "id": {id}, "result": {"content": [{"type": "text", "text": "fine"}]}}\n\n'
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + _FINE


async def test_a_site_of_the_mcp_package_is_called_with_its_secret(tmp_path: Path) -> None:
    port = free_port()
    argv = python("tools.py", str(tmp_path), "http", str(port))

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as site, capture_logs() as logs:
        try:
            await until(listens, within_s=60)
            async with _started(f"http://127.0.0.1:{port}/mcp") as server:
                assert (await server.call("web__echo", {"text": "one"}, meta={})).text == "one"
                sent = await server.call("web__header", {"name": "authorization"}, meta={})
                assert sent.text == "[redacted]"
                answer = await server.call("web__key", {}, meta={"crewlet/idempotency-key": "k1"})
                assert answer.text == "k1"
                site.kill()
                with pytest.raises(ToolUnavailable, match="web gave no answer"):
                    await server.call("web__echo", {"text": "two"}, meta={})
                await until(lambda: server.trouble is not None)
        finally:
            site.kill()
    assert "tool_server_gone" in [event["event"] for event in logs]
    assert SECRET not in str(logs)


async def test_a_site_that_refuses_us_is_not_started_and_its_status_is_named() -> None:
    site = Site(status=401)
    async with on_loopback(site) as url:
        with pytest.raises(ToolServerNotStarted, match=r"web did not start: it refused: HTTP 401"):
            async with _started(url):
                pass
    assert site.headers[0]["authorization"] == f"Bearer {SECRET}"


async def test_a_site_that_is_not_there_is_not_started() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(ToolServerNotStarted, match="web did not start: ConnectError"):
            async with _started(f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"):
                pass


async def test_an_answer_that_never_comes_over_http_ends_with_its_time_out() -> None:
    site = Site(is_silent=True)
    async with on_loopback(site) as url, _started(url, call_s=0.5) as server:
        with pytest.raises(ToolUnavailable, match=r"it did not answer within 0.5 s"):
            await server.call("web__t", {}, meta={})
        assert site.calls == 1 and server.trouble is None


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"content-type: application/json", "an answer of more than 4194304 bytes"),
        (b"content-type: text/event-stream", "event exceeded the 4194304 byte limit"),
    ],
)
async def test_a_body_of_ten_megabytes_is_not_taken_in(head: bytes, says: str) -> None:
    body = b'data: {"jsonrpc": "2.0", "id": {id}, "result": "' + b"x" * 10_000_000
    site = Site(b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body))
    async with on_loopback(site) as url, _started(url) as server:
        try:
            told = (await server.call("web__t", {}, meta={})).text
        except ToolUnavailable as error:
            told = str(error)
        assert says in told


async def test_a_compressed_answer_is_not_unpacked() -> None:
    site = Site(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx"
    )
    async with on_loopback(site) as url, _started(url) as server:
        with pytest.raises(ToolUnavailable, match="compressed"):
            await server.call("web__t", {}, meta={})


async def test_a_secret_does_not_follow_a_redirect_to_another_place() -> None:
    other = Site()
    async with on_loopback(other) as elsewhere:
        site = Site(f"HTTP/1.1 307 There\r\nlocation: {elsewhere}\r\ncontent-length: 0\r\n\r\n".encode())
        async with on_loopback(site) as url, _started(url) as server:
            answer = await server.call("web__t", {}, meta={})
            assert answer.is_error and "not followed" in answer.text
    assert other.headers == []


async def test_a_site_that_fails_is_named_with_its_status_and_stays() -> None:
    site = Site()
    async with on_loopback(site) as url, _started(url) as server:
        site.status = 500
        answer = await server.call("web__t", {}, meta={})
        assert answer.is_error and answer.text == "the server refused the call: HTTP 500"
        assert server.trouble is None


async def test_a_site_that_forgot_our_session_is_greeted_again() -> None:
    site = Site(_OK)
    async with on_loopback(site) as url, _started(url) as server:
        site.status = 404
        with pytest.raises(ToolUnavailable, match="it does not know our session any more"):
            await server.call("web__t", {}, meta={})
        await until(lambda: server.trouble is not None)
        site.status = 200
        await until(lambda: server.trouble is None)
        assert (await server.call("web__t", {}, meta={})).text == "fine"
