"""Reading a `python` runner: `{type: python, target: "module:function", ...}`."""

import keyword
from pathlib import Path
from typing import Final

from crewlet.company.commands import read_cwd, read_env
from crewlet.company.model import PythonRunner
from crewlet.kit.fields import Block, Field

PYTHON_KEYS: Final = ("type", "target", "path", "env", "timeout_s")


def read_python(block: Block, folder: Path | None, max_timeout_s: float) -> PythonRunner:
    """The runner that a block with `PYTHON_KEYS` describes.

    Raises:
        ConfigRefused: with source, line, field and remedy.
    """
    path, env, timeout = block.get("path"), block.get("env"), block.get("timeout_s")
    return PythonRunner(
        target=_read_target(block.require("target", _REMEDY)),
        path=read_cwd(path, folder) if path else str(folder) if folder else None,
        env=read_env(env) if env else {},
        timeout_s=timeout.number(0.001, max_timeout_s) if timeout else None,
    )


_REMEDY: Final = "write `module:function`, for instance `agents:run` for the function `run` of agents.py"


def _read_target(field: Field) -> str:
    target = field.line_of_text()
    module, colon, function = target.partition(":")
    if not (colon and _is_dotted(module) and _is_dotted(function)):
        field.refuse(f"{target!r} names no function of a module", _REMEDY)
    return target


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))
