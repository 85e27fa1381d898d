"""A site that speaks MCP by hand, on the loop of the test."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ask:
    """One request to it.

    Attributes:
        message: what stands in its body; {} without one.
        to: where its answer is written.
    """

    method: str
    headers: Mapping[str, str]
    message: Mapping[str, Any]
    to: asyncio.StreamWriter


@dataclass
class Site:
    """A site that speaks MCP by hand.

    Attributes:
        call: what it answers a call with, from the status line on; `{id}` is filled in.
        status: anything but 200 is what every message gets.
        act: is shown each request first; True: that was its answer.
    """

    call: bytes = b""
    status: int = 200
    is_silent: bool = False
    calls: int = 0
    act: "Callable[[Site, Ask], Awaitable[bool]] | None" = None
    headers: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.headers.append(headers)
                message: dict[str, Any] = json.loads(body) if body else {}
                if self.act and await self.act(self, Ask(head[0].split()[0], headers, message, writer)):
                    continue
                if head[0].startswith("GET"):
                    writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                else:
                    writer.write(await self._answer(message))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> bytes:
        if self.status != 200:
            return b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % self.status
        match request.get("method"):
            case "initialize":
                version = request["params"]["protocolVersion"]
                info = {"name": "raw", "version": "1"}
                return json_answer(
                    request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
                )
            case "tools/list":
                return json_answer(request, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
            case "tools/call":
                self.calls += 1
                if self.is_silent:
                    await asyncio.sleep(600)
                return self.call.replace(b"{id}", str(request["id"]).encode())
            case "ping":
                return json_answer(request, {})
            case _:
                return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


def json_answer(request: dict[str, Any], result: Any) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
    head = b"content-type: application/json\r\nmcp-session-id: s1\r\ncontent-length: %d" % len(body)
    return b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head, body)


@asynccontextmanager
async def on_loopback(site: Site) -> AsyncGenerator[str]:
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.close()
