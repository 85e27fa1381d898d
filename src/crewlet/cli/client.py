"""Talking to a running node over HTTP, with the standard library alone so that a command starts fast."""

import http.client
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from crewlet.cli.whereabouts import Whereless, find_node, is_stopped
from crewlet.kit.refusal import ConfigRefused
from crewlet.node.settings import load_data_dir
from crewlet.ports.errors import CrewletError

TOKEN_ENV = "CREWLET_API_TOKEN"
TIMEOUT_S = 15.0
TELL_AFTER_S = 2.0
"""A command that waits for its node longer than this says so."""


class CommandFailed(CrewletError):
    """The command could not be done; the text is one sentence for people.

    Attributes:
        word: the same for programs.
        facts: what is known all the same, for `-o json`.
    """

    word = "failed"

    def __init__(self, sentence: str, *, word: str | None = None, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.word = word or self.word
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
        super().__init__(sentence, word=word)
        self.status = status


@dataclass(slots=True)
class NodeClient:
    """One node's API.

    Attributes:
        url: where it listens.
        token: what to show it, or None.
        token_from: where the token was found, for people.
        pid: the node's process, where it is known to run on this machine.
    """

    url: str
    token: str | None = None
    token_from: str = ""
    pid: int | None = None
    _has_told_of_waiting: bool = False

    @classmethod
    def find(cls, url: str | None, config: Path) -> Self:
        """The node of a URL, else the one that runs with a settings file.

        The token is the environment's; without one there, a node found by its settings file is shown the token that it
        wrote for its own user. A token is never taken from a settings file, which may say another than the node has.

        Raises:
            CommandFailed: none runs, or the token cannot be sent.
            ConfigRefused: a URL or settings file that cannot be used.
        """
        token = _token_of_environment()
        if url:
            return cls(_checked(url), token, TOKEN_ENV)
        try:
            data_dir = load_data_dir(config)
        except ConfigRefused as refusal:
            if config.exists():
                raise
            remedy = "name a settings file with --config, or a node with --url"
            raise ConfigRefused(refusal.problem, where=refusal.where, remedy=remedy) from None
        try:
            node = find_node(data_dir, config)
        except Whereless as none:
            raise CommandFailed(str(none), word="no_node") from None
        if token is not None:
            return cls(node.url, token, TOKEN_ENV, node.pid)
        return cls(node.url, node.token, str(node.path), node.pid)

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
        waiting = threading.Timer(TELL_AFTER_S, self._tell_of_waiting, (timeout_s,))
        waiting.daemon = True
        waiting.start()
        try:
            connection.connect()
            was_sent = True
            connection.request(method, parts.path.rstrip("/") + path, body, {**shown, **(headers or {})})
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise NodeSilent(self._why_silent(error, timeout_s), was_sent=was_sent) from error
        finally:
            waiting.cancel()
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
            sentence = self._why_unauthorized()
        word = answer.get("error") if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        raise NodeRefused(sentence, status, str(word or "refused"))  # pyright: ignore[reportUnknownArgumentType]

    def _tell_of_waiting(self, timeout_s: float) -> None:
        if not self._has_told_of_waiting and timeout_s > TELL_AFTER_S:
            self._has_told_of_waiting = True
            print(
                f"crewlet: Waiting for {self._who()} to answer, {timeout_s:.0f} s at most.", file=sys.stderr, flush=True
            )

    def _who(self) -> str:
        return f"the node at {self.url}" + (f" (process {self.pid})" if self.pid is not None else "")

    def _why_silent(self, error: Exception, timeout_s: float) -> str:
        if not isinstance(error, TimeoutError):
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return f"No node answers at {self.url} ({why})."
        silent = f"The node at {self.url} did not answer within {round(timeout_s, 1):g} s"
        if self.pid is None:
            return f"{silent}: look whether its machine and process are well, and at its log."
        if is_stopped(self.pid):
            return f"{silent}: its process {self.pid} is there and stopped; `kill -CONT {self.pid}` lets it go on."
        stacks = f"`kill -USR2 {self.pid}` has it print what it is at"
        return f"{silent}, though its process {self.pid} is there: {stacks}, and a restart ends it."

    def _why_unauthorized(self) -> str:
        if self.token is None:
            return f"The node at {self.url} wants a token: set {TOKEN_ENV} to its api.token."
        unset = f", or unset {TOKEN_ENV}" if self.pid is not None and self.token_from == TOKEN_ENV else ""
        return (
            f"The node at {self.url} refuses the token of {self.token_from}: set {TOKEN_ENV} to its api.token{unset}."
        )


def _token_of_environment() -> str | None:
    token = os.environ.get(TOKEN_ENV) or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise CommandFailed(f"{TOKEN_ENV} has a line break or another character that no token can have.")
    return token


def _checked(url: str) -> str:
    if any(mark in url for mark in "@?#"):
        # It may be a secret, so it is not quoted.
        raise ConfigRefused(
            "a user, password or query is no part of a node's address",
            where="--url",
            remedy=f"write http://host:port, and set {TOKEN_ENV} where the node wants a token",
        )
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
