"""A tool server that leaves evidence of itself and of each call. A call lasts as long as `{seat}.hold` is there."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from seatwitness import Witness

FOLDER, SEAT = sys.argv[1:]
HOLD = Path(FOLDER, f"{SEAT}.hold")
WITNESS = Witness("tool", FOLDER, SEAT)
WITNESS.up()


def answer(request: dict[str, Any], result: Any) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() + b"\n")


def book(request: dict[str, Any]) -> None:
    params = request["params"]
    meta = params["_meta"]
    of_it = {"order": params["arguments"]["order"], "epoch": meta["crewlet/epoch"]}
    WITNESS.note("begin", key=meta["crewlet/idempotency-key"], resource=meta["crewlet/resource"], **of_it)
    while HOLD.exists():
        WITNESS.note("tick", **of_it)
        time.sleep(0.05)
    WITNESS.note("end", **of_it)
    answer(request, {"content": [{"type": "text", "text": "booked"}]})


for line in sys.stdin:
    message: dict[str, Any] = json.loads(line)
    match message.get("method"):
        case "initialize":
            version, info = message["params"]["protocolVersion"], {"name": "mover", "version": "1"}
            answer(message, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        case "tools/list":
            schema = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
            answer(message, {"tools": [{"name": "book", "inputSchema": schema}]})
        case "tools/call":
            book(message)
        case "ping":
            answer(message, {})
        case _:
            pass
