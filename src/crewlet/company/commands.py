"""The grammar of programs in the company document: a command, its variables, its working folder. Pure."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from crewlet.kit.fields import Field
from crewlet.kit.references import NotAReference, referenced
from crewlet.kit.yamlfile import ListNode

PYTHON_WORD: Final = "{python}"
"""As the first word of a command: the interpreter that runs Crewlet."""
_QUOTING: Final = "'\"\\"


def read_command(field: Field) -> tuple[str, ...]:
    """A program and its arguments, as a list or as one line in the shell's quoting."""
    if isinstance(field.node, ListNode):
        words = tuple(item.text() for item in field.items())
    else:
        try:
            text = field.text()
            is_plain = text.isascii() and text.isprintable() and not any(mark in text for mark in _QUOTING)
            words = tuple(text.split() if is_plain else shlex.split(text))
        except ValueError:
            field.refuse("a quote or backslash in this command is not closed", "close it, or write the words as a list")
    if not words or not words[0].strip():
        field.refuse("the command names no program", f"write one, for instance `{PYTHON_WORD} agent.py`")
    if any("\0" in word for word in words):
        field.refuse("the command has a null character", "remove it")
    return (sys.executable if words[0] == PYTHON_WORD else words[0], *words[1:])


def read_env(field: Field) -> Mapping[str, str]:
    """Variables, by name. Their values may refer to variables of the node that starts the program, as `${NAME}`."""
    env: dict[str, str] = {}
    for name, value in field.pairs():
        if not name or "=" in name or not name.isprintable() or any(char.isspace() for char in name):
            value.refuse(f"{name!r} cannot be the name of a variable", "use letters, digits and underscores")
        check_references(value)
        env[name] = value.text()
        if "\0" in env[name]:
            value.refuse("the value has a null character", "remove it")
    return env


def check_references(field: Field) -> None:
    """Refuse what begins a reference to a variable and is none."""
    try:
        referenced(field.text())
    except NotAReference as wrong:
        remedy = "write ${NAME} with letters, digits and underscores, or $${ for a literal ${"
        field.refuse(f"{str(wrong)!r} is not a reference to a variable", remedy)


def read_cwd(field: Field, folder: Path | None) -> str:
    """A working folder, absolute; a relative one is taken from `folder`."""
    path = Path(field.line_of_text())
    if folder is None and not path.is_absolute():
        field.refuse(f"{str(path)!r} is relative and this text has no folder", "write an absolute path")
    return str((folder or Path("/")).joinpath(path).resolve())
