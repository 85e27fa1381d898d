"""`crewlet validate`: hold both files against every rule, without starting anything."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, load
from crewlet.cli.printing import print_facts, print_json
from crewlet.company.model import (
    CommandRunner,
    Company,
    LlmRunner,
    PythonRunner,
    ScriptRunner,
    Seat,
    ToolProgram,
    ToolSite,
)
from crewlet.kit.executables import missing
from crewlet.kit.references import NotAReference, UnsetVariable, substitute
from crewlet.node.formerstreams import left_behind
from crewlet.node.settings import Settings


def validate(config: ConfigOption = DEFAULT_CONFIG, output: OutputOption = Output.table) -> None:
    """Check the settings file and the company document."""
    settings, company = load(config)
    warnings = list(warnings_of(settings, company))
    facts = {
        "settings": str(settings.path),
        "node": settings.node.id,
        "coordination": settings.coordination.type,
        "stream": settings.stream.type,
        "document": str(settings.company),
        "company": company.name,
        "seats": len(company.seats),
    }
    if output is Output.json:
        print_json({"ok": True, **facts, "warnings": warnings})
        return
    print_facts(facts)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def warnings_of(settings: Settings, company: Company) -> Iterator[str]:
    """What is allowed and yet hardly meant, as seen from this machine."""
    if problem := _unusable(settings.node.data_dir) or _unusable(settings.node.data_dir / "run"):
        yield f"node.data_dir {settings.node.data_dir} cannot be used on this machine: {problem}."
    elif settings.stream.store_dir is not None and (problem := _unusable(settings.stream.store_dir)):
        yield f"stream.store_dir {settings.stream.store_dir} cannot be used on this machine: {problem}."
    yield from left_behind(settings)
    llm_seats = [seat.handle for seat in company.seats if isinstance(seat.runner, LlmRunner)]
    if llm_seats and find_spec("pydantic_ai") is None:
        yield f"seat {llm_seats[0]!r} is an llm seat, and the extra `llm` is not installed here."
    for seat in company.seats:
        match seat.runner:
            case ScriptRunner(steps=()):
                yield f"seat {seat.handle!r} has no steps to run: its mail is finished without any work."
            case PythonRunner(target=target, path=path, env=env) if not _has_module(target, path, env):
                yield f"seat {seat.handle!r} calls {target!r}, whose module is not in {path} nor installed."
            case LlmRunner(models=models):
                for model in models:
                    if model.api_key is not None and not os.environ.get(model.api_key):
                        yield f"seat {seat.handle!r} takes its key from {model.api_key}, which is not set here."
            case _:
                pass
        for problem in _missing_of(seat):
            yield f"seat {seat.handle!r} is not ready on this machine: {problem}."
        if settings.coordination.type == "local" and not seat.placement.matches(settings.node.id, settings.node.labels):
            yield f"seat {seat.handle!r} is placed on {seat.placement}, which this only node is not: nobody runs it."


def _unusable(folder: Path) -> str:
    """What keeps a node from having this folder, as far as that can be seen without making it; "" for nothing."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    except PermissionError as error:
        return f"this user may not look into {Path(str(error.filename)).parent}"
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"this user may not write to {there}"


def _missing_of(seat: Seat) -> Iterator[str]:
    """What this machine lacks of what the seat's agent, and its tool servers, need."""
    if isinstance(seat.runner, CommandRunner | PythonRunner) and (unset := _unset(seat.runner.env)):
        yield f"its env needs the variable {unset}, which is not set"
    elif isinstance(seat.runner, CommandRunner) and (
        problem := _not_startable(seat.runner.command[0], seat.runner.env, seat.runner.cwd)
    ):
        yield problem
    for server in seat.tool_servers:
        if unset := _unset(server.headers if isinstance(server, ToolSite) else server.env):
            yield f"its tool server {server.name} needs the variable {unset}, which is not set"
        elif isinstance(server, ToolProgram) and (problem := _not_startable(server.command[0], server.env, server.cwd)):
            yield f"its tool server {server.name} cannot be started: {problem}"


def _not_startable(program: str, env: Mapping[str, str], cwd: str | None) -> str:
    """What keeps it from being started; each variable that the env refers to is set."""
    found = {name: substitute(text, os.environ.get) for name, text in env.items() if name == "PATH"}
    return missing(program, {"PATH": os.environ.get("PATH", os.defpath), **found}, cwd)


def _unset(texts: Mapping[str, str]) -> str:
    """The first variable that is referred to and not set here; "" for none."""
    for text in texts.values():
        with contextlib.suppress(NotAReference):
            try:
                substitute(text, os.environ.get)
            except UnsetVariable as unset:
                return str(unset)
    return ""


def _has_module(target: str, path: str | None, env: Mapping[str, str]) -> bool:
    top = target.partition(":")[0].partition(".")[0]
    own = Path(path or ".", top)
    return (
        own.is_dir()
        or own.with_suffix(".py").is_file()
        or "PYTHONPATH" in env
        or importlib.util.find_spec(top) is not None
    )
