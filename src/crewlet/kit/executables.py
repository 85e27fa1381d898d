"""Whether a program is there to be started, as the system will look for it, and why one is not."""

import os
from collections.abc import Iterator, Mapping

_FIRST_LINE_BYTES = 256
_SHOWN_CHARS = 100


def missing(name: str, env: Mapping[str, str], folder: str | None) -> str:
    """What keeps a program from being started, in a sentence without a full stop; "" when nothing is seen to.

    Args:
        name: the program, as in the first word of a command.
        env: the environment that it is to have; its PATH is what is searched.
        folder: its working folder; None is this process's.
    """
    if problem := missing_folder(folder):
        return problem
    found = [path for path in _candidates(name, env, folder or "") if os.path.isfile(path)]
    if not found:
        return not_found(name, env)
    startable = next((path for path in found if os.access(path, os.X_OK)), None)
    if startable is None:
        return not_executable(name)
    interpreter = _interpreter(startable)
    if interpreter and not os.access(os.path.join(folder or "", interpreter), os.X_OK):
        return f"{name} is a script for {interpreter}, which is missing or not executable"
    return ""


def missing_folder(folder: str | None) -> str:
    """The same of a working folder."""
    there = folder is None or os.path.isdir(folder)
    return "" if there else f"the working folder {folder} is missing or not a folder"


def not_found(name: str, env: Mapping[str, str]) -> str:
    """The sentence about a program that is nowhere."""
    if "/" in name:
        return f"{name} was not found"
    path = env.get("PATH", os.defpath)
    shown = path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}…"
    return f"{name} was not found on the path {shown}"


def not_executable(name: str) -> str:
    """The sentence about one that may not be executed."""
    return f"{name} is not executable"


def _candidates(name: str, env: Mapping[str, str], folder: str) -> Iterator[str]:
    """Where the system looks, in its order: what has a slash in its working folder, everything else on its path."""
    if "/" in name:
        yield os.path.join(folder, name)
        return
    for each in os.get_exec_path(env):
        yield os.path.join(folder, each, name)


def _interpreter(path: str) -> str:
    """The program that a script names in its first line; "" where there is none or it cannot be read."""
    try:
        with open(path, "rb") as file:
            first = file.readline(_FIRST_LINE_BYTES)
    except OSError:
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""
