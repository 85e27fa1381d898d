"""Asking a node over HTTP."""

import asyncio
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class NoAnswer(Exception):
    """The node did not answer, or not with what was asked for. A repeat may be answered."""


class Refused(Exception):
    """The node will not do it, now or on a repeat."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """Who holds what, as `/query/fleet` of one node tells it: `holders` by handle, None with nobody."""

    nodes: tuple[str, ...]
    holders: Mapping[str, str | None]

    @property
    def unheld(self) -> list[str]:
        return [handle for handle, owner in self.holders.items() if owner is None]

    def held_by(self, node_id: str) -> int:
        return sum(owner is not None and owner.rpartition(":")[0] == node_id for owner in self.holders.values())


async def fleet(url: str, *, timeout_s: float = 3.0) -> FleetView:
    """The fleet as that node sees it.

    Raises:
        NoAnswer: it does not say.
    """
    answer = await _ask(url, "GET", "/query/fleet", timeout_s=timeout_s)
    try:
        return FleetView(
            tuple(str(node["id"]) for node in answer["nodes"]),
            {str(seat["handle"]): seat.get("owner") for seat in answer["seats"]},
        )
    except (KeyError, TypeError) as error:
        raise NoAnswer(f"{url}/query/fleet has no {error}") from error


async def post_mail(url: str, handle: str, body: str, *, subject: str, key: str, timeout_s: float = 5.0) -> str:
    """Send mail to a seat; a repeat with the same key, by any node, is the same mail. Returns the mail's id.

    Raises:
        NoAnswer: it may have been taken, or not.
        Refused: it was not, and will not be.
    """
    mail = {"body": body, "subject": subject}
    answer = await _ask(url, "POST", f"/seats/{handle}/mail", body=mail, key=key, timeout_s=timeout_s)
    return str(answer["id"])


async def _ask(
    url: str, method: str, path: str, *, timeout_s: float, body: Mapping[str, str] | None = None, key: str = ""
) -> dict[str, Any]:
    return await asyncio.to_thread(_ask_blocking, url, method, path, timeout_s, body, key)


def _ask_blocking(
    url: str, method: str, path: str, timeout_s: float, body: Mapping[str, str] | None, key: str
) -> dict[str, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    headers = {"Accept": "application/json"}
    if body is not None:
        headers |= {"Content-Type": "application/json", "Idempotency-Key": key}
    try:
        connection.request(method, path, json.dumps(body).encode() if body is not None else None, headers)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"{url}{path}: {error}") from error
    finally:
        connection.close()
    if 400 <= response.status < 500:
        raise Refused(f"{path} was refused with {response.status}: {data.decode(errors='replace')[:200]}")
    try:
        answer = json.loads(data) if response.status < 300 else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer(f"{url}{path} answered {response.status}")
    return answer  # pyright: ignore[reportUnknownVariableType]
