"""Just enough of the NATS protocol to ask a server whether it serves, and to give back what a dead node had."""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

NOBODY = b"NATS/1.0 503"
"""The answer to a question that nobody listens to: it had no effect."""

_INBOX = "_INBOX.crewlet.up"
_PAGE = 1024


@dataclass(frozen=True, slots=True)
class Question:
    """One request."""

    subject: str
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Wire:
    """A connection for one thread: questions are asked together, and their answers waited for.

    Raises (every verb):
        OSError: there is no server, it refuses, or the connection broke.
    """

    def __init__(self, host: str, port: int, token: str | None, *, timeout_s: float = 1.0) -> None:
        options: dict[str, object] = {"verbose": False, "pedantic": False, "lang": "crewlet", "version": "0"}
        options |= {"headers": True, "no_responders": True, "name": "crewlet up"}
        if token is not None:
            options["auth_token"] = token
        self._asked = 0
        self._seen = b""
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        try:
            self._socket.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {_INBOX}.* 1\r\n".encode())
            self.flush(timeout_s=timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def tell(self, subject: str, payload: bytes) -> None:
        """Publish without an answer. Only `flush` says that the server has it."""
        self._socket.sendall(_message(Question(subject, payload), ""))

    def flush(self, *, timeout_s: float = 1.0) -> None:
        """Wait until the server has taken in all that was sent."""
        self._socket.sendall(b"PING\r\n")
        until = time.monotonic() + timeout_s
        while self._next(until) is not _PONG:
            pass

    def ask(self, questions: Sequence[Question], *, timeout_s: float = 1.0) -> list[bytes | None]:
        """Ask all, in this order, and wait for the answers.

        Returns:
            The answer of each: `NOBODY` where it reached nobody, None where none came in time.
        """
        first, self._asked = self._asked, self._asked + len(questions)
        replies = [f"{_INBOX}.{first + number}" for number in range(len(questions))]
        self._socket.sendall(b"".join(map(_message, questions, replies)))
        answers: list[bytes | None] = [None] * len(questions)
        left = len(questions)
        until = time.monotonic() + timeout_s
        while left:
            try:
                heard = self._next(until)
            except TimeoutError:
                break
            number = heard.number - first
            if 0 <= number < len(questions):
                answers[number] = heard.data
                left -= 1
        return answers

    def ask_json(self, questions: Sequence[Question], *, timeout_s: float = 1.0) -> list[dict[str, Any] | None]:
        """The same where JSON objects are the answers; None for whatever else."""
        return [_parsed(answer) for answer in self.ask(questions, timeout_s=timeout_s)]

    def _next(self, until: float) -> "_Heard":
        """The next answer or pong. Raises TimeoutError past the instant."""
        while True:
            line = self._line(until)
            verb, _, rest = line.partition(b" ")
            if verb in (b"MSG", b"HMSG"):
                words = rest.split()
                size = int(words[-1])
                body = self._bytes(size + 2, until)[:size]
                skipped = int(words[-2]) if verb == b"HMSG" else 0
                answer = NOBODY if body.startswith(NOBODY) else body[skipped:]
                return _Heard(int(words[0].rpartition(b".")[2]), answer)
            if verb == b"PONG":
                return _PONG
            if verb == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif verb == b"-ERR":
                raise OSError(f"the broker answered {rest.decode(errors='replace')}")

    def _line(self, until: float) -> bytes:
        while b"\r\n" not in self._seen:
            self._receive(until)
        line, _, self._seen = self._seen.partition(b"\r\n")
        return line

    def _bytes(self, count: int, until: float) -> bytes:
        parts, self._seen = [self._seen], b""
        have = len(parts[0])
        while have < count:
            self._receive(until)
            parts.append(self._seen)
            have, self._seen = have + len(self._seen), b""
        whole = b"".join(parts)
        self._seen = whole[count:]
        return whole[:count]

    def _receive(self, until: float) -> None:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left_s)
        more = self._socket.recv(65536)
        if not more:
            raise OSError("the broker closed the connection")
        self._seen += more


@dataclass(frozen=True, slots=True)
class _Heard:
    number: int
    data: bytes


_PONG = _Heard(-1, b"")


def answers(host: str, port: int, token: str | None, *, timeout_s: float = 1.0) -> bool:
    """Whether a server takes a client in and answers its ping."""
    try:
        with Wire(host, port, token, timeout_s=timeout_s):
            return True
    except OSError:
        return False


def jetstream_answers(host: str, port: int, token: str | None, *, timeout_s: float = 1.0) -> bool:
    """Whether JetStream answers an account request, which in a cluster takes an elected leader."""
    try:
        with Wire(host, port, token, timeout_s=timeout_s) as wire:
            (answer,) = wire.ask_json([Question("$JS.API.INFO")], timeout_s=timeout_s)
            return answer is not None and "error" not in answer
    except OSError:
        return False


def connected(monitor_port: int, *, timeout_s: float = 1.0) -> set[str]:
    """The names of the connections that a server of this machine has now, by its monitoring page.

    Raises:
        OSError: it does not say.
    """
    names: set[str] = set()
    offset = 0
    while True:
        page = _connz(monitor_port, offset, timeout_s)
        names |= {str(each.get("name", "")) for each in page["connections"]}
        offset += len(page["connections"])
        if not page["connections"] or offset >= int(page["total"]):
            return names


def _connz(port: int, offset: int, timeout_s: float) -> dict[str, Any]:
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as http:
        http.sendall(f"GET /connz?limit={_PAGE}&offset={offset} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        text = b""
        while more := http.recv(65536):
            text += more
    head, _, body = text.partition(b"\r\n\r\n")
    page = _parsed(body)
    if b" 200 " not in head.partition(b"\r\n")[0] or page is None or not {"connections", "total"} <= page.keys():
        raise OSError("the broker's monitoring page does not list its connections")
    return page


def _message(question: Question, reply: str) -> bytes:
    to = f"{question.subject} {reply}".rstrip()
    size = len(question.payload)
    if not question.headers:
        return f"PUB {to} {size}\r\n".encode() + question.payload + b"\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in question.headers.items())
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    return f"HPUB {to} {len(head)} {len(head) + size}\r\n".encode() + head + question.payload + b"\r\n"


def _parsed(answer: bytes | None) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        parsed: object = json.loads(answer or b"")
        if isinstance(parsed, dict):
            return {str(key): value for key, value in parsed.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return None
