"""Reading the tool servers of a seat: `tools: {servers: {NAME: ...}}`.

References to variables of the node (`${NAME}`) are checked for their form and kept as they are: each node resolves
them when it starts the server, so that no document, record or log holds what they stand for.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from crewlet.company.commands import check_references, read_command, read_cwd, read_env
from crewlet.company.model import ToolProgram, ToolSite
from crewlet.company.rules import read_address
from crewlet.kit.fields import Block, Field

SERVER_NAME_GRAMMAR: Final = "[a-z0-9][a-z0-9-]{0,23}"
MAX_SERVERS: Final = 16
MAX_CALL_TIMEOUT_S: Final = 3600
MAX_START_TIMEOUT_S: Final = 300

_NAME = re.compile(SERVER_NAME_GRAMMAR)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_TIMES = ("call_timeout_s", "start_timeout_s")
_PROGRAM_KEYS = ("command", "env", "cwd", *_TIMES)
_SITE_KEYS = ("url", "headers", *_TIMES)
_SENT_BY_US: Final = frozenset(
    ("accept", "accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding")
)


def read_tools(field: Field, folder: Path | None) -> tuple[ToolProgram | ToolSite, ...]:
    """The servers that a role's `tools:` names, in the document's order.

    Args:
        folder: where relative working folders are taken from; see `parse_company`.

    Raises:
        ConfigRefused: with source, line, field and remedy.
    """
    servers = field.block(("servers",)).get("servers")
    if servers is None:
        return ()
    read = tuple(_read_server(name, server, folder) for name, server in servers.pairs())
    if len(read) > MAX_SERVERS:
        servers.refuse(f"a seat has at most {MAX_SERVERS} tool servers, this one {len(read)}", "remove some")
    return read


def _read_server(name: str, field: Field, folder: Path | None) -> ToolProgram | ToolSite:
    if not _NAME.fullmatch(name):
        remedy = "use 1 to 24 lower-case letters, digits and hyphens, beginning with a letter or digit"
        field.refuse(f"{name!r} cannot be the name of a tool server", remedy)
    is_program = field.peek("command") is not None
    if is_program == (field.peek("url") is not None):
        field.block({*_PROGRAM_KEYS, *_SITE_KEYS})
        field.refuse("a tool server has either a command or a url", "write `command:` or `url:`")
    block = field.block(_PROGRAM_KEYS if is_program else _SITE_KEYS)
    call, start = block.get("call_timeout_s"), block.get("start_timeout_s")
    call_s = call.number(0.1, MAX_CALL_TIMEOUT_S) if call else 60.0
    start_s = start.number(0.1, MAX_START_TIMEOUT_S) if start else 30.0
    if is_program:
        return _read_program(name, block, folder, call_s, start_s)
    return _read_site(name, block, call_s, start_s)


def _read_program(name: str, block: Block, folder: Path | None, call_s: float, start_s: float) -> ToolProgram:
    env, cwd = block.get("env"), block.get("cwd")
    return ToolProgram(
        name=name,
        command=read_command(block.require("command", "write the program and its arguments")),
        env=read_env(env) if env else {},
        cwd=read_cwd(cwd, folder) if cwd else str(folder) if folder else None,
        call_timeout_s=call_s,
        start_timeout_s=start_s,
    )


def _read_site(name: str, block: Block, call_s: float, start_s: float) -> ToolSite:
    headers = block.get("headers")
    return ToolSite(
        name=name,
        url=_read_url(block.require("url", "write its address")),
        headers=_read_headers(headers) if headers else {},
        call_timeout_s=call_s,
        start_timeout_s=start_s,
    )


def _read_url(field: Field) -> str:
    remedy = "write `https://host/path`, and put what is secret into `headers:`"
    secret = "an address may not hold a user or a password: it shows in lists and logs"
    text, _ = read_address(field, remedy, secret=secret)
    return text


def _read_headers(field: Field) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for name, value in field.pairs():
        if not _HEADER.fullmatch(name):
            value.refuse(f"{name!r} cannot be the name of a header", "use letters, digits and hyphens")
        if name.lower() in _SENT_BY_US or name.lower().startswith("mcp-"):
            value.refuse(f"the header {name!r} is set by Crewlet itself", "remove it")
        if name.lower() in {given.lower() for given in headers}:
            value.refuse(f"the header {name!r} is here twice", "remove one of them")
        check_references(value)
        headers[name] = value.line_of_text()
        if not headers[name].isascii():
            value.refuse("a header's value is plain ASCII", "encode it as the server wants it")
    return headers
