"""A tool server written with the `mcp` package, with tools that behave and tools that do not.

Usage: tools.py FOLDER [http PORT]. It ignores SIGTERM. What it does that nobody is answered, it writes to FOLDER.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

FOLDER = Path(sys.argv[1])
server = MCPServer("nasty")


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True))
def key(ctx: Context) -> str:
    """The idempotency key of this call."""
    return str((ctx.request_context.meta or {}).get("crewlet/idempotency-key"))


@server.tool()
def variable(name: str) -> str:
    """A variable of its environment."""
    return os.environ.get(name, "(not set)")


@server.tool()
def header(name: str, ctx: Context) -> str:
    """A header of the request that brought this call."""
    return (ctx.headers or {}).get(name, "(not sent)")


@server.tool(name="odd name/with.dots")
def odd() -> str:
    """A name that no model provider takes."""
    return "odd"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it is broken")


@server.tool(structured_output=False)
def picture() -> Image:
    """Answers with what is no text."""
    return Image(data=b"\x89PNG" * 300, format="png")


@server.tool()
def big(size: int) -> str:
    """Answers at length."""
    return "x" * size


@server.tool()
async def hang() -> str:
    """Never answers. Notes when it is told that nobody waits any more."""
    (FOLDER / "hanging").touch()
    try:
        await asyncio.sleep(600)
    except BaseException:
        (FOLDER / "cancelled").touch()
        raise
    return "never"


@server.tool()
def die() -> str:
    """Dies in the middle of the call, with its secret on its lips."""
    print(f"dying with {os.environ.get('SECRET')}", file=sys.stderr, flush=True)
    os._exit(7)


@server.tool()
def fork() -> str:
    """Leaves a child in its own group, and a daemon that went the thorough way; both ignore SIGTERM."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            time.sleep(60)
        os._exit(0)
    return f"{child} {os.read(read, 20).decode()}"


if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[3]))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.run()
