"""The tool servers of a seat in the company document."""

import sys
from pathlib import Path

import pytest

from crewlet.company.document import parse_company
from crewlet.company.model import ToolProgram, ToolSite
from crewlet.kit.refusal import ConfigRefused

FOLDER = Path("/desk")


def _servers(text: str) -> tuple[ToolProgram | ToolSite, ...]:
    lines = "".join(f"          {line}\n" for line in text.splitlines())
    document = f"name: Desk\nroles:\n  - handle: a\n    tools:\n      servers:\n{lines}"
    (seat,) = parse_company(document, "company.yaml", folder=FOLDER).seats
    return seat.tool_servers


def test_a_program_and_a_site_are_read_with_their_references_unresolved() -> None:
    files, web = _servers(
        """
files:
  command: ["{python}", -m, files, --root, .]
  env: {KEY: "${FILES_KEY}"}
  cwd: data
  call_timeout_s: 5
web:
  url: https://tools.example/mcp
  headers: {Authorization: "Bearer ${TOKEN}"}
  start_timeout_s: 3
"""
    )
    command = (sys.executable, "-m", "files", "--root", ".")
    assert files == ToolProgram("files", command, {"KEY": "${FILES_KEY}"}, "/desk/data", 5.0)
    assert web == ToolSite(
        "web", "https://tools.example/mcp", {"Authorization": "Bearer ${TOKEN}"}, start_timeout_s=3.0
    )


def test_a_seat_without_tools_has_no_servers_and_a_program_runs_in_the_documents_folder() -> None:
    (seat,) = parse_company("name: Desk\nroles:\n  - handle: a\n    tools: {}\n", "company.yaml").seats
    assert seat.tool_servers == ()
    (files,) = _servers("files: {command: run files}")
    assert files == ToolProgram("files", ("run", "files"), cwd="/desk")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Files: {command: x}", "'Files' cannot be the name of a tool server"),
        ("a_b: {command: x}", "cannot be the name of a tool server"),
        (f"{'a' * 25}: {{command: x}}", "cannot be the name of a tool server"),
        ("files: {}", "either a command or a url"),
        ("files: {command: x, url: 'http://h/'}", "either a command or a url"),
        ("files: {command: x, headers: {A: b}}", "headers: this key is not known"),
        ("web: {url: 'http://h/', env: {A: b}}", "env: this key is not known"),
        ("files: {command: x, env: {KEY: '${a b}'}}", "is not a reference to a variable"),
        ("files: {command: x, env: {KEY: '${A'}}", "is not a reference to a variable"),
        ("files: {command: x, call_timeout_s: 0}", "is not a number from 0.1 to 3600"),
        ("files: {command: x, start_timeout_s: 301}", "is not a number from 0.1 to 300"),
        ("web: {url: ftp://h/}", "no address over HTTP"),
        ("web: {url: 'http://h:99999/'}", "no address"),
        ("web: {url: 'http://me:secret@h/'}", "may not hold a user or a password"),
        ("web: {url: 'http://h/${TOKEN}'}", "may not refer to variables"),
        ("web: {url: 'http://h/', headers: {'A B': c}}", "cannot be the name of a header"),
        ("web: {url: 'http://h/', headers: {Host: c}}", "set by Crewlet itself"),
        ("web: {url: 'http://h/', headers: {Mcp-Session-Id: c}}", "set by Crewlet itself"),
        ("web: {url: 'http://h/', headers: {X: a, x: b}}", "here twice"),
        ("web: {url: 'http://h/', headers: {X: é}}", "plain ASCII"),
        ("web: {url: 'http://h/', headers: {X: '${}'}}", "is not a reference"),
        ("\n".join(f"s{n}: {{command: x}}" for n in range(17)), "at most 16 tool servers"),
    ],
)
def test_what_cannot_be_a_tool_server_is_refused_where_it_stands(text: str, says: str) -> None:
    with pytest.raises(ConfigRefused, match=says):
        _servers(text)


def test_a_person_has_no_tools() -> None:
    document = "name: Desk\nroles:\n  - handle: a\n    kind: human\n    tools: {}\n"
    with pytest.raises(ConfigRefused, match="tools: a person's role has none"):
        parse_company(document, "company.yaml")
