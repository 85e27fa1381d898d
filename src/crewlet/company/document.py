"""Reading the company document: which units and roles there are, and what runs each seat.

Every rule that can be checked from the document alone is checked here, so that what comes out is a valid company.
Nothing of the environment is read, and nothing is looked for on disk but the document.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crewlet.company.budgets import UNLIMITED, read_budget, read_timezone
from crewlet.company.commands import read_command, read_cwd, read_env
from crewlet.company.llm import LLM_KEYS, read_llm
from crewlet.company.model import CommandRunner, Company, Placement, Runner, ScriptRunner, Seat
from crewlet.company.pythonseat import PYTHON_KEYS, read_python
from crewlet.company.rules import read_handle, read_labels, read_node_id
from crewlet.company.schedules import read_schedules
from crewlet.company.script import Sends, check_sends, read_steps
from crewlet.company.tools import read_tools
from crewlet.kit.fields import Block, Field
from crewlet.kit.yamlfile import parse, read_text

MAX_TIMEOUT_S: Final = 7 * 24 * 3600

_COMPANY_KEYS = (
    "name",
    "units",
    "roles",
    "timezone",
    "budget",
    "notification_coalesce_window_seconds",
    "notification_coalesce_max_batch",
    "schedules",
)
_ROLE_KEYS = ("handle", "title", "unit", "kind", "placement", "runner", "tools", "budget")
_COMMAND_KEYS = ("type", "command", "env", "cwd", "timeout_s")
_SCRIPT_KEYS = ("type", "steps")


def load_company(path: Path) -> Company:
    """The company that a file describes. Relative working folders are taken from the file's own folder.

    Raises:
        ConfigRefused: with file, line, field and remedy.
    """
    text = read_text(path, remedy="write one, or let `crewlet init` do it")
    return parse_company(text, str(path), folder=path.parent.resolve())


def parse_company(text: str, source: str, *, folder: Path | None = None) -> Company:
    """The company that a text describes.

    Args:
        source: names the text in refusals.
        folder: where relative working folders are taken from, and the one of a command without any; None leaves the
            first refused and the second open.

    Raises:
        ConfigRefused: with source, line, field and remedy.
    """
    document = Block.of_document(parse(text, source), source, _COMPANY_KEYS)
    name = document.require("name", "write `name:` with the company's name").line_of_text()
    window = document.get("notification_coalesce_window_seconds")
    batch = document.get("notification_coalesce_max_batch")
    zone, budget = document.get("timezone"), document.get("budget")
    units = _read_units(document.get("units"))
    roles = _read_roles(document.get("roles"), units, folder)
    seats = tuple(role for role in roles if isinstance(role, Seat))
    people = tuple(role for role in roles if isinstance(role, str))
    timezone, schedules = read_timezone(zone) if zone else "UTC", document.get("schedules")
    return Company(
        name=name,
        seats=seats,
        people=people,
        units={name: unit.parent for name, unit in units.items()},
        coalesce_window_s=window.number(0, 60) if window else 0.0,
        coalesce_max_batch=batch.integer(1, 100) if batch else 20,
        timezone=timezone,
        budget=read_budget(budget) if budget else UNLIMITED,
        schedules=read_schedules(schedules, [seat.handle for seat in seats], people, timezone) if schedules else (),
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    line: int
    parent: str | None
    field: Field


def _read_units(field: Field | None) -> Mapping[str, _Unit]:
    units: dict[str, _Unit] = {}
    for item in field.items() if field else ():
        block = item.block(("name", "parent"))
        name_field = block.require("name", "write `name:` with the unit's name")
        name = name_field.line_of_text()
        if name in units:
            problem = f"the unit {name!r} is here twice (first on line {units[name].line})"
            name_field.refuse(problem, "rename one of them")
        parent = block.get("parent")
        units[name] = _Unit(name_field.line, parent.line_of_text() if parent else None, parent or name_field)
    for name, unit in units.items():
        if unit.parent is not None and unit.parent not in units:
            unit.field.refuse(f"there is no unit {unit.parent!r}", _list_of("units", units))
        _refuse_cycle(name, units)
    return units


def _refuse_cycle(name: str, units: Mapping[str, _Unit]) -> None:
    seen = {name}
    unit = units[name]
    while unit.parent is not None and unit.parent in units:
        if unit.parent in seen:
            units[name].field.refuse(f"the unit {name!r} lies inside itself", "give one of its parents another parent")
        seen.add(unit.parent)
        unit = units[unit.parent]


def _read_roles(field: Field | None, units: Mapping[str, _Unit], folder: Path | None) -> list[Seat | str]:
    """Seats, and the handles of people as plain text, in the document's order."""
    roles: list[Seat | str] = []
    lines: dict[str, int] = {}
    sends: Sends = []
    for item in field.items() if field else ():
        block = item.block(_ROLE_KEYS)
        handle_field = block.require("handle", "write `handle:` with the seat's address")
        handle = read_handle(handle_field)
        if handle in lines:
            problem = f"the handle {handle!r} is here twice (first on line {lines[handle]})"
            handle_field.refuse(problem, "rename one of them")
        lines[handle] = handle_field.line
        roles.append(_read_role(block, handle, units, folder, sends))
    check_sends(sends, {role.handle for role in roles if isinstance(role, Seat)}, lines.keys())
    return roles


def _read_role(block: Block, handle: str, units: Mapping[str, _Unit], folder: Path | None, sends: Sends) -> Seat | str:
    title_field, unit_field, kind_field = block.get("title"), block.get("unit"), block.get("kind")
    title = title_field.line_of_text() if title_field else ""
    unit = unit_field.line_of_text() if unit_field else None
    if unit_field is not None and unit not in units:
        unit_field.refuse(f"there is no unit {unit!r}", _list_of("units", units))
    placement, runner, tools = block.get("placement"), block.get("runner"), block.get("tools")
    budget = block.get("budget")
    if kind_field is not None and kind_field.choice(("agent", "human")) == "human":
        for forbidden in (placement, runner, tools, budget):
            if forbidden is not None:
                forbidden.refuse("a person's role has none", "remove it, or write `kind: agent`")
        return handle
    return Seat(
        handle=handle,
        title=title,
        unit=unit,
        placement=_read_placement(placement) if placement else Placement(),
        runner=_read_runner(runner, folder, sends) if runner else ScriptRunner(),
        tool_servers=read_tools(tools, folder) if tools else (),
        budget=read_budget(budget) if budget else UNLIMITED,
    )


def _read_placement(field: Field) -> Placement:
    block = field.block(("node", "labels"))
    node, labels = block.get("node"), block.get("labels")
    return Placement(
        node=read_node_id(node) if node else None,
        labels=tuple(read_labels(labels).items()) if labels else (),
    )


def _read_runner(field: Field, folder: Path | None, sends: Sends) -> Runner:
    known = {*_COMMAND_KEYS, *_SCRIPT_KEYS, *PYTHON_KEYS, *LLM_KEYS}
    kind = field.block(known).require("type", "write `type: llm`, `type: python`, `type: command` or `type: script`")
    match kind.choice(("llm", "python", "command", "script")):
        case "llm":
            return read_llm(field.block(LLM_KEYS))
        case "command":
            return _read_command(field.block(_COMMAND_KEYS), folder)
        case "python":
            return read_python(field.block(PYTHON_KEYS), folder, MAX_TIMEOUT_S)
        case _:
            pass
    steps = field.block(_SCRIPT_KEYS).get("steps")
    return ScriptRunner(read_steps(steps, sends) if steps else ())


def _read_command(block: Block, folder: Path | None) -> CommandRunner:
    env, cwd, timeout = block.get("env"), block.get("cwd"), block.get("timeout_s")
    return CommandRunner(
        command=read_command(block.require("command", "write the program and its arguments")),
        env=read_env(env) if env else {},
        cwd=read_cwd(cwd, folder) if cwd else str(folder) if folder else None,
        timeout_s=timeout.number(0.001, MAX_TIMEOUT_S) if timeout else None,
    )


def _list_of(noun: str, names: Mapping[str, object]) -> str:
    return f"the {noun} are {', '.join(names)}" if names else f"add it to `{noun}:`"
