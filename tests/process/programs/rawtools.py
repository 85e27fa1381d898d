"""A tool server that speaks MCP by hand, and breaks its rules in the way its argument names. Starts at once."""

import json
import os
import signal
import sys
import time
from typing import Any

MODE = sys.argv[1]
PAGES = 3
CHILDREN: list[int] = []


def say(line: bytes) -> None:
    os.write(1, line + b"\n")


def answer(request: dict[str, Any], result: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def listing(request: dict[str, Any]) -> None:
    params: dict[str, Any] = request.get("params") or {}
    cursor = int(params.get("cursor", 0))
    match MODE:
        case "pages":
            more = {"nextCursor": str(cursor + 1)} if cursor + 1 < PAGES else {}
            answer(request, {"tools": [tool(f"t{cursor}"), tool("same")], **more})
        case "endless":
            answer(request, {"tools": [], "nextCursor": "1"})
        case "crowd":
            answer(request, {"tools": [tool(f"t{number}") for number in range(257)]})
        case "bulk":
            answer(request, {"tools": [tool("t", description="x" * 1_100_000)]})
        case "slow":
            time.sleep(60)
        case "malformed":
            answer(request, {"tools": {"name": 7}})
        case "holds-pipe":
            if os.fork() == 0:
                time.sleep(60)
            os._exit(3)
        case "closes":
            os.close(1)
            time.sleep(60)
        case "noise":
            for number in range(100):
                say(b"\xff\xfe\x00 noise %d" % number)
            time.sleep(60)
        case _:
            answer(request, {"tools": [tool("t", annotations={"readOnlyHint": True})]})


def call(request: dict[str, Any]) -> None:
    match MODE:
        case "binary":
            say(bytes(range(1, 10)) + b"\x80\xff" * 100)
        case "flood":
            say(b"x" * 10_000_000)
        case "wrong-form":
            answer(request, {"content": [{"type": "hologram"}]})
        case "refuses":
            error = {"code": -32602, "message": f"no: {os.environ.get('SECRET')}"}
            say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode())
        case "asks":
            say(json.dumps({"jsonrpc": "2.0", "id": 99, "method": "roots/list"}).encode())
            answer(request, {"content": [{"type": "text", "text": sys.stdin.readline()}]})
        case "freezes":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "dies":
            print(f"dying with {os.environ.get('SECRET')}", file=sys.stderr, flush=True)
            os._exit(5)
        case "forks":
            if not CHILDREN:
                CHILDREN.append(os.fork())
                if CHILDREN[0] == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    os.setsid()
                    time.sleep(60)
                answer(request, {"content": [{"type": "text", "text": str(CHILDREN[0])}]})
        case "deaf":
            time.sleep(60)
        case _:
            answer(request, {"content": [{"type": "text", "text": "fine"}]})


def main() -> None:
    if MODE == "mute":
        time.sleep(60)
    print("ready", file=sys.stderr, flush=True)
    if MODE == "prints":
        say(b"Welcome to my server!")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        match request.get("method"):
            case "initialize":
                version = request["params"]["protocolVersion"]
                info = {"name": "raw", "version": "1"}
                answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
            case "tools/list":
                listing(request)
            case "tools/call":
                call(request)
            case "ping":
                answer(request, {})
            case _:
                pass


main()
