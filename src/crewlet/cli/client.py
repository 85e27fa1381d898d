"""Talking to a running node over HTTP, with the standard library alone so that a command starts fast."""

import http.client
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from crewlet.kit.refusal import ConfigRefused
from crewlet.node.settings import load_data_dir, node_file
from crewlet.ports.errors import CrewletError

TOKEN_ENV = "CREWLET_API_TOKEN"
TIMEOUT_S = 15.0


class CommandFailed(CrewletError):
    """The command could not be done; the text is one sentence for people.

    Attributes:
        word: the same for programs.
        facts: what is known all the same, for `-o json`.
    """

    word = "failed"

    def __init__(self, sentence: str, *, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.facts: Mapping[str, Any] = facts or {}


class NodeSilent(CommandFailed):
    """No node answered. Whether it took the request is not known, unless `was_sent` is false."""

    word = "no_answer"

    def __init__(self, sentence: str, *, was_sent: bool) -> None:
        super().__init__(sentence)
        self.was_sent = was_sent


class NodeRefused(CommandFailed):
    """The node answered with a refusal. A 503 may pass."""

    def __init__(self, sentence: str, status: int, word: str = "refused") -> None:
        super().__init__(sentence)
        self.status = status
        self.word = word


@dataclass(frozen=True, slots=True)
class NodeClient:
    """One node's API.

    Attributes:
        url: where it listens.
        token: what to show it, or None.
    """

    url: str
    token: str | None = None

    @classmethod
    def find(cls, url: str | None, config: Path) -> Self:
        """The node of a URL, else the one that runs with a settings file.

        Raises:
            CommandFailed: none runs, or the token cannot be sent.
            ConfigRefused: a URL or settings file that cannot be used.
        """
        token = _token_of_environment()
        if url:
            return cls(_checked(url), token)
        try:
            data_dir = load_data_dir(config)
        except ConfigRefused as refusal:
            if config.exists():
                raise
            remedy = "name a settings file with --config, or a node with --url"
            raise ConfigRefused(refusal.problem, where=refusal.where, remedy=remedy) from None
        facts = _read_node_file(node_file(data_dir))
        if facts is None:
            raise CommandFailed(f"No node runs with {config}; start one with `crewlet up`.")
        return cls(facts["url"], facts.get("token") or token)

    def get(self, path: str, *, timeout_s: float = TIMEOUT_S) -> Any:
        """What a GET answers.

        Raises:
            NodeSilent, NodeRefused.
        """
        return self._request("GET", path, timeout_s=timeout_s)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """What a POST answers.

        Raises:
            NodeSilent, NodeRefused.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}
        return self._request("POST", path, json.dumps(body).encode(), sent, timeout_s=timeout_s)

    def delete(self, path: str) -> Any:
        """What a DELETE answers.

        Raises:
            NodeSilent, NodeRefused.
        """
        return self._request("DELETE", path)

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        parts = urlsplit(self.url)
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.hostname or "", parts.port, timeout=timeout_s)
        shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        was_sent = False
        try:
            connection.connect()
            was_sent = True
            connection.request(method, parts.path.rstrip("/") + path, body, {**shown, **(headers or {})})
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NodeSilent(f"No node answers at {self.url} ({why}).", was_sent=was_sent) from error
        finally:
            connection.close()
        return self._answer(status, data)

    def _answer(self, status: int, data: bytes) -> Any:
        try:
            answer: Any = json.loads(data)
        except ValueError:
            raise NodeRefused(f"What answers at {self.url} is not a Crewlet node.", status) from None
        if status < 400:
            return answer
        detail = answer.get("detail") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        sentence = str(detail) if detail else f"The node refused with status {status}."  # pyright: ignore[reportUnknownArgumentType]
        if status == 401:
            sentence += f" Set {TOKEN_ENV}."
        word = answer.get("error") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        raise NodeRefused(sentence, status, str(word or "refused"))  # pyright: ignore[reportUnknownArgumentType]


def _token_of_environment() -> str | None:
    token = os.environ.get(TOKEN_ENV) or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise CommandFailed(f"{TOKEN_ENV} has a line break or another character that no token can have.")
    return token


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # What HTTP's request line and Host header cannot carry, which the client library meets with other exceptions.
        is_good = is_good and url.isprintable() and " " not in url and parts.path.isascii()
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_good, parts = False, urlsplit("")
    if not is_good:
        raise ConfigRefused(f"{url!r} is not the address of a node", where="--url", remedy="write http://host:port")
    return parts.geturl().rstrip("/")


def _read_node_file(path: Path) -> dict[str, Any] | None:
    """What a node wrote about itself, or None when it does not run."""
    try:
        facts = json.loads(path.read_text())
        is_alive = _is_alive(int(facts["pid"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{path} cannot be read ({error}); name the node with --url.") from error
    return facts if is_alive else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
