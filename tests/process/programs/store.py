"""A store outside, as a tool server: it counts the calls that arrive, and keeps their keys.

Usage: store.py FOLDER PORT. Each arrival is a line of FOLDER/calls.jsonl, each booking one of FOLDER/booked.jsonl.
While a file FOLDER/look.ORDER, FOLDER/arrived.ORDER or FOLDER/booked.ORDER is there, the call of that order stands
still there; another with `.reached` behind its name says that it does.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

FOLDER = Path(sys.argv[1])
server = MCPServer("store")
keys: set[str] = set()


def _write(name: str, line: dict[str, Any]) -> None:
    with (FOLDER / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps({**line, "at": time.time()}) + "\n")


async def _while_held(where: str, order: str) -> None:
    (FOLDER / f"{where}.{order}.reached").touch()
    while (FOLDER / f"{where}.{order}").exists():
        await asyncio.sleep(0.02)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(order: str) -> str:
    """Only reads."""
    await _while_held("look", order)
    return f"nothing is booked for {order}"


@server.tool()
async def book(order: str, ctx: Context) -> str:
    """Books an order, once for each key."""
    meta: dict[str, Any] = dict(ctx.request_context.meta or {})
    key, resource, epoch = (meta.get(f"crewlet/{name}") for name in ("idempotency-key", "resource", "epoch"))
    _write("calls", {"order": order, "key": key, "resource": resource, "epoch": epoch})
    await _while_held("arrived", order)
    if key not in keys:
        keys.add(str(key))
        _write("booked", {"order": order, "key": key})
    await _while_held("booked", order)
    return f"{order} is booked"


server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
