"""Just enough of the NATS protocol to ask a server whether it serves."""

import json
import socket

_INBOX = "_INBOX.crewlet.up"


def answers(host: str, port: int, token: str | None, *, timeout_s: float = 1.0) -> bool:
    """Whether a server takes a client in and answers its ping."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as wire:
            wire.settimeout(timeout_s)
            wire.sendall(_hello(token) + b"PING\r\n")
            return _read_until(wire, b"PONG\r\n") is not None
    except OSError:
        return False


def jetstream_answers(host: str, port: int, token: str | None, *, timeout_s: float = 1.0) -> bool:
    """Whether JetStream answers an account request, which in a cluster takes an elected leader."""
    ask = f"SUB {_INBOX} 1\r\nPUB $JS.API.INFO {_INBOX} 0\r\n\r\n".encode()
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as wire:
            wire.settimeout(timeout_s)
            wire.sendall(_hello(token) + ask)
            head = _read_until(wire, f"MSG {_INBOX} ".encode())
            if head is None:
                return False
            answer = head.rpartition(b"MSG ")[2]
            while answer.count(b"\r\n") < 2:
                more = wire.recv(4096)
                if not more:
                    return False
                answer += more
            return b'"error"' not in answer.split(b"\r\n")[1]
    except OSError:
        return False


def _hello(token: str | None) -> bytes:
    options: dict[str, object] = {"verbose": False, "pedantic": False, "lang": "crewlet", "version": "0"}
    if token is not None:
        options["auth_token"] = token
    return f"CONNECT {json.dumps(options)}\r\n".encode()


def _read_until(wire: socket.socket, mark: bytes) -> bytes | None:
    seen = b""
    while mark not in seen:
        more = wire.recv(4096)
        if not more:
            return None
        seen += more
        if b"-ERR" in seen:
            return None
    return seen
