"""Who may speak to the API, asked before any route sees the request.

Without a token the API is for this machine alone: the Host header must name it, so that no web page that a browser has
open can reach it under another name, and bodies must be JSON, which a page cannot send elsewhere without asking first.
"""

import hmac
import json
from collections.abc import Mapping

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 8 * 1024 * 1024
PROBES = frozenset({"/health", "/livez", "/readyz"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
ONCE = ("Host", "Authorization", "Content-Type", "Idempotency-Key")
"""Headers that a request has once at most: of two, nobody could say which one was meant."""
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})


_log = structlog.get_logger()


class BodyTooLarge(HTTPException):
    """More body arrived than is allowed. An HTTPException, because the framework lets no other out of a body's read."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body is larger than {limit} bytes.", headers={"Connection": "close"})


class Guard:
    """ASGI middleware.

    Args:
        host: the configured listening address.
        token: what callers must show as a bearer token, or None. With one, an API that listens on every address takes
            any Host header, since no one without the token gets past it.
    """

    def __init__(self, app: ASGIApp, *, host: str, token: str | None, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._token = token.encode() if token is not None else None
        self._max_body_bytes = max_body_bytes
        own = f"[{host}]" if ":" in host else host.lower()
        self._names = None if host in ANY_ADDRESS and token is not None else LOOPBACK_NAMES | {own}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = _doubled(scope) or self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        is_answered = False
        left = self._max_body_bytes

        async def bounded_receive() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise BodyTooLarge(self._max_body_bytes)
            return message

        async def noted_send(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app(scope, bounded_receive, noted_send)
        except Exception:
            _log.exception("api_request_failed", method=scope["method"], path=scope["path"])
            if is_answered:
                raise
            await _answer(send, 500, "internal", "This node failed to answer; its log has the reason.")

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str, str] | None:
        if self._names is not None and _name_of(headers.get("host", "")) not in self._names:
            return 403, "host_refused", "The Host header does not name this node."
        if scope["path"] not in PROBES and not self._is_authorized(headers.get("authorization", "")):
            return 401, "unauthorized", "Show the API token of this node as a bearer token."
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "not_json", "The body must be JSON, sent as application/json."
            length = headers.get("content-length", "0")
            if length.isdecimal() and int(length) > self._max_body_bytes:
                return self._too_large()
        return None

    def _is_authorized(self, header: str) -> bool:
        if self._token is None:
            return True
        scheme, _, shown = header.partition(" ")
        return hmac.compare_digest(shown.strip().encode("latin-1"), self._token) and scheme.lower() == "bearer"

    def _too_large(self) -> tuple[int, str, str]:
        return 413, "too_large", f"The body is larger than {self._max_body_bytes} bytes."


def _doubled(scope: Scope) -> tuple[int, str, str] | None:
    names = [name.lower() for name, _ in scope["headers"]]
    for header in ONCE:
        if names.count(header.lower().encode()) > 1:
            return 400, "bad_request", f"The request has more than one {header} header; send it once."
    return None


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and (port.isdecimal() or not port) and not name.endswith(":") else host.lower()


async def _answer(send: Send, status: int, error: str, detail: str) -> None:
    body = json.dumps({"error": error, "detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
