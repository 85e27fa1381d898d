"""Where a program is looked for, and what keeps one from being started."""

import os
import subprocess
from pathlib import Path

import pytest

from crewlet.kit.executables import missing


def _made(path: Path, first: str = "#!/bin/sh", mode: int = 0o755) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{first}\nexit 0\n")
    path.chmod(mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _made(tmp_path / "here")
    _made(tmp_path / "bin" / "tool")
    _made(tmp_path / "plain", mode=0o644)
    _made(tmp_path / "stray", "#! /no/such/python -u")
    _made(tmp_path / "near", "#!./here")
    (tmp_path / "sub").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "env", "cwd", "says"),
    [
        ("./here", {}, ".", ""),
        ("{folder}/here", {}, None, ""),
        ("../here", {}, "sub", ""),
        ("./here", {}, "sub", "./here was not found"),
        ("tool", {"PATH": "/nowhere:{folder}/bin"}, ".", ""),
        ("tool", {"PATH": "bin"}, ".", ""),
        ("tool", {"PATH": "/nowhere"}, ".", "tool was not found on the path /nowhere"),
        ("sub", {"PATH": "{folder}"}, ".", "sub was not found on the path {folder}"),
        ("./plain", {}, ".", "./plain is not executable"),
        ("./near", {}, ".", ""),
        ("./stray", {}, ".", "./stray is a script for /no/such/python, which is missing or not executable"),
        ("./here", {}, "gone", "the working folder {folder}/gone is missing or not a folder"),
        ("./here", {}, "here", "the working folder {folder}/here is missing or not a folder"),
    ],
)
def test_a_program_is_there_when_it_can_be_started_and_else_the_first_reason_is_told(
    folder: Path, name: str, env: dict[str, str], cwd: str | None, says: str
) -> None:
    name, says = (text.replace("{folder}", str(folder)) for text in (name, says))
    env = {key: value.replace("{folder}", str(folder)) for key, value in env.items()}
    within = str(folder / cwd) if cwd is not None else None
    assert missing(name, env, None if within is None else os.path.normpath(within)) == says
    try:
        started = subprocess.run([name], env=env, cwd=within, check=False, timeout=60).returncode == 0
    except OSError:
        started = False
    assert started is (says == "")
