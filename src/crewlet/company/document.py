"""Reading the company document: which units and roles there are, and what runs each seat.

Every rule that can be checked from the document alone is checked here, so that what comes out is a valid company.
Nothing of the environment is read, and nothing is looked for on disk but the document.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from crewlet.company.budgets import UNLIMITED, read_budget, read_timezone
from crewlet.company.commands import read_command, read_cwd, read_env
from crewlet.company.instants import Schedule
from crewlet.company.llm import LLM_KEYS, read_llm
from crewlet.company.model import CommandRunner, Company, Placement, Runner, ScriptRunner, Seat
from crewlet.company.pythonseat import PYTHON_KEYS, read_python
from crewlet.company.rules import read_handle, read_labels, read_node_id
from crewlet.company.schedules import read_schedules
from crewlet.company.script import Sends, check_send, read_steps
from crewlet.company.tools import read_tools
from crewlet.kit.fields import Block, Field
from crewlet.kit.refusal import Refusals
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
        ConfigRefused: with source, line, field and remedy; ManyRefused where more is wrong.
    """
    refusals = Refusals()
    document = Block.of_document(parse(text, source), source, _COMPANY_KEYS, refusals)
    name = document.need("name", "write `name:` with the company's name", Field.line_of_text, "")
    count = len(refusals)
    units = document.read("units", _read_units, {})
    known_units = units if len(refusals) == count else None
    none = _Roles(lacks_some=document.get("roles") is not None)
    roles = document.read("roles", lambda field: _read_roles(field, known_units, folder), none)
    timezone = document.read("timezone", read_timezone, "UTC")
    company = Company(
        name=name,
        seats=tuple(roles.seats),
        people=tuple(roles.people),
        units={name: unit.parent for name, unit in units.items()},
        coalesce_window_s=document.read("notification_coalesce_window_seconds", lambda field: field.number(0, 60), 0.0),
        coalesce_max_batch=document.read("notification_coalesce_max_batch", lambda field: field.integer(1, 100), 20),
        timezone=timezone,
        budget=document.read("budget", read_budget, UNLIMITED),
        schedules=document.read("schedules", lambda field: _read_schedules(field, roles, timezone), ()),
    )
    refusals.raise_any()
    return company


def _read_schedules(field: Field, roles: "_Roles", timezone: str) -> tuple[Schedule, ...]:
    handles = [seat.handle for seat in roles.seats] if not roles.lacks_some else None
    return read_schedules(field, handles, roles.people, timezone)


@dataclass(frozen=True, slots=True)
class _Unit:
    line: int
    parent: str | None
    field: Field


_Units = Mapping[str, _Unit] | None
"""The units by name; None where some could not be read, so that nobody can tell which there are."""


def _read_units(field: Field) -> Mapping[str, _Unit]:
    units: dict[str, _Unit] = {}
    for item in field.items():
        item.read(partial(_read_unit, units=units), None)
    for name, unit in units.items():
        unit.field.read(partial(_check_parent, name=name, units=units), None)
    return units


def _read_unit(item: Field, *, units: dict[str, _Unit]) -> None:
    block = item.block(("name", "parent"))
    field = block.require("name", "write `name:` with the unit's name")
    name = field.line_of_text()
    if name in units:
        problem = f"the unit {name!r} is here twice (first on line {units[name].line})"
        field.refuse(problem, "rename one of them")
    parent = block.get("parent")
    units[name] = _Unit(field.line, parent.line_of_text() if parent else None, parent or field)


def _check_parent(field: Field, *, name: str, units: Mapping[str, _Unit]) -> None:
    parent = units[name].parent
    if parent is not None and parent not in units:
        field.refuse(f"there is no unit {parent!r}", _list_of("units", units))
    _refuse_cycle(name, units)


def _refuse_cycle(name: str, units: Mapping[str, _Unit]) -> None:
    seen = {name}
    unit = units[name]
    while unit.parent is not None and unit.parent in units:
        if unit.parent in seen:
            units[name].field.refuse(f"the unit {name!r} lies inside itself", "give one of its parents another parent")
        seen.add(unit.parent)
        unit = units[unit.parent]


@dataclass(slots=True)
class _Roles:
    """What was read of the roles, in the document's order.

    Attributes:
        lines: of all handles.
        lacks_some: some could not be read so far as to tell its handle.
    """

    seats: list[Seat] = field(default_factory=list[Seat])
    people: list[str] = field(default_factory=list[str])
    lines: dict[str, int] = field(default_factory=dict[str, int])
    sends: Sends = field(default_factory=list[tuple[Field, str]])
    lacks_some: bool = False


def _read_roles(field: Field, units: _Units, folder: Path | None) -> _Roles:
    roles = _Roles()
    for item in field.items():
        is_known = item.read(partial(_read_role, roles=roles, units=units, folder=folder), False)
        roles.lacks_some = roles.lacks_some or not is_known
    if not roles.lacks_some:
        handles = {seat.handle for seat in roles.seats}
        for to in roles.sends:
            to[0].read(partial(check_send, handle=to[1], seats=handles, roles=roles.lines.keys()), None)
    return roles


def _read_role(item: Field, *, roles: _Roles, units: _Units, folder: Path | None) -> bool:
    block = item.block(_ROLE_KEYS)
    handle_field = block.require("handle", "write `handle:` with the seat's address")
    handle = handle_field.read(read_handle, "")
    if handle in roles.lines:
        problem = f"the handle {handle!r} is here twice (first on line {roles.lines[handle]})"
        handle_field.refuse(problem, "rename one of them")
    if handle:
        roles.lines[handle] = handle_field.line
    title = block.read("title", Field.line_of_text, "")
    unit = block.read("unit", partial(_read_unit_of, units=units), None)
    if block.read("kind", lambda field: field.choice(("agent", "human")), "agent") == "human":
        for key in ("placement", "runner", "tools", "budget"):
            block.read(key, _refuse_of_person, None)
        roles.people.append(handle)
        return bool(handle)
    seat = Seat(
        handle=handle,
        title=title,
        unit=unit,
        placement=block.read("placement", _read_placement, Placement()),
        runner=block.read("runner", lambda field: _read_runner(field, folder, roles.sends), ScriptRunner()),
        tool_servers=block.read("tools", lambda field: read_tools(field, folder), ()),
        budget=block.read("budget", read_budget, UNLIMITED),
    )
    roles.seats.append(seat)
    return bool(handle)


def _read_unit_of(field: Field, *, units: _Units) -> str | None:
    unit = field.line_of_text()
    if units is not None and unit not in units:
        field.refuse(f"there is no unit {unit!r}", _list_of("units", units))
    return unit


def _refuse_of_person(field: Field) -> None:
    field.refuse("a person's role has none", "remove it, or write `kind: agent`")


def _read_placement(field: Field) -> Placement:
    block = field.block(("node", "labels"))
    return Placement(
        node=block.read("node", read_node_id, None),
        labels=tuple(block.read("labels", read_labels, {}).items()),
    )


def _read_runner(field: Field, folder: Path | None, sends: Sends) -> Runner:
    kind = field.peek("type")
    if kind is None:
        known = {*_COMMAND_KEYS, *_SCRIPT_KEYS, *PYTHON_KEYS, *LLM_KEYS}
        kind = field.block(known).require(
            "type", "write `type: llm`, `type: python`, `type: command` or `type: script`"
        )
    match kind.choice(("llm", "python", "command", "script")):
        case "llm":
            return read_llm(field.block(LLM_KEYS))
        case "command":
            return _read_command(field.block(_COMMAND_KEYS), folder)
        case "python":
            return read_python(field.block(PYTHON_KEYS), folder, MAX_TIMEOUT_S)
        case _:
            pass
    steps = field.block(_SCRIPT_KEYS).read("steps", lambda field: read_steps(field, sends), ())
    return ScriptRunner(steps)


def _read_command(block: Block, folder: Path | None) -> CommandRunner:
    return CommandRunner(
        command=block.need("command", "write the program and its arguments", read_command, ()),
        env=block.read("env", read_env, {}),
        cwd=block.read("cwd", lambda field: read_cwd(field, folder), str(folder) if folder else None),
        timeout_s=block.read("timeout_s", lambda field: field.number(0.001, MAX_TIMEOUT_S), None),
    )


def _list_of(noun: str, names: Mapping[str, object]) -> str:
    return f"the {noun} are {', '.join(names)}" if names else f"add it to `{noun}:`"
