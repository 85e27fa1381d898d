"""Where the node of a data directory is, and what became of it where it does not answer."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crewlet.kit.processes import look_at
from crewlet.node.settings import node_file
from crewlet.supervisor.runlock import NODE_LOCK, UP_LOCK, Holder, look

_SOON = "ask again in a moment, or look at its log"


class Whereless(Exception):
    """No node can be asked; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What a running node wrote of itself.

    Attributes:
        url: where it listens.
        pid: its process.
        token: its API's token, or None.
        path: the file that says so.
    """

    url: str
    pid: int
    token: str | None
    path: Path


def find_node(data_dir: Path, config: Path) -> Whereabouts:
    """The node that runs on a data directory.

    Args:
        config: the settings file that names it, as sentences are to show it.

    Raises:
        Whereless: none runs, or it is not up yet; says which.
    """
    path = node_file(data_dir)
    try:
        facts = _read(path)
        node, up = look(path.with_name(NODE_LOCK)), look(path.with_name(UP_LOCK))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Whereless(f"{path.parent} cannot be read ({why}); name the node with --url.") from error
    if facts is None or not _runs(facts, node):
        raise Whereless(_why_not(config, node, up))
    if facts["url"] is None:
        sentence = f"The node of {config} (process {facts['pid']}) has no API: its api.port is 0"
        raise Whereless(f"{sentence}, so that no command can ask it.")
    return Whereabouts(facts["url"], facts["pid"], facts.get("token"), path)


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine stands still by a signal, as far as the system tells."""
    try:
        seen = look_at(pid)
    except OSError:
        return False
    return seen is not None and seen.stands_still


def _read(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if not isinstance(facts, dict) or not isinstance(facts.get("pid"), int) or "url" not in facts:  # pyright: ignore[reportUnknownMemberType]
        raise ValueError(f"{path.name} is not what a node writes")
    return facts  # pyright: ignore[reportUnknownVariableType]


def _runs(facts: dict[str, Any], node: Holder | None) -> bool:
    """Whether the one who wrote the facts is there: as who has the lock, or without a lock file by its id."""
    if node is not None:
        return node.is_held and node.pid == facts["pid"]
    try:
        os.kill(facts["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _why_not(config: Path, node: Holder | None, up: Holder | None) -> str:
    """Why there is no node to ask: it starts, it starts again, it died, it was stopped, it never was."""
    if node is not None and node.is_held:
        return f"The node of {config} (process {node.pid}) is still starting and takes no questions yet: {_SOON}."
    if up is not None and up.is_held:
        if node is not None and node.pid is not None:
            ended = f"The node of {config} (process {node.pid}) ended without a stop"
            return f"{ended}, and `crewlet up` (process {up.pid}) starts it again: {_SOON}."
        return f"`crewlet up` (process {up.pid}) is still starting the node of {config}: {_SOON}."
    none = f"No node runs with {config}"
    last = node.pid if node is not None else None
    who = f"the last one (process {last})" if last is not None else ""
    if not who and up is not None and up.pid is not None:
        who = f"the last `crewlet up` (process {up.pid})"
    if who:
        return f"{none}: {who} ended without a stop, as by a crash or `kill -9`; start it again with `crewlet up`."
    if node is not None or up is not None:
        return f"{none}: the last one has ended; start one with `crewlet up`."
    return f"No node has run with {config} yet; start one with `crewlet up`."
