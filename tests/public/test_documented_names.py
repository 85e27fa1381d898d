"""Names that people and their programs rely on: what the code has is documented, and what is documented is there."""

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from crewlet.cli.app import COMMANDS, load
from crewlet.node.status import HealthSnapshot
from crewlet.web.app import create_app
from crewlet.web.metrics import NodeCollector

ROOT = Path(__file__).parents[2]
CODE = {path: path.read_text("utf-8") for path in (ROOT / "src/crewlet").rglob("*.py")}
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
GUIDES = [path for path in DOCUMENTS if path.name not in ("behaviours.md", "track-record.md", "survives.md")]

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def logged() -> Iterator[str]:
    """The events that the code logs under a name that stands there."""
    for text in (text for path, text in CODE.items() if "testing" not in path.parts):
        for call in ast.walk(ast.parse(text)):
            match call:
                case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_]):
                    if level in LEVELS:
                        yield event
                case _:
                    pass


def test_every_event_that_is_logged_stands_in_the_catalogue() -> None:
    documented = set(re.findall(r"`([^`]+)`", text_of("docs/log.md")))
    events = set(logged())
    assert len(events) > 200 and events - documented == set()


def test_every_stream_and_bucket_is_documented() -> None:
    found = {name for text in CODE.values() for name in re.findall(r'(?:BucketSpec|MailStream)\("(\w+)"', text)}
    table = text_of("docs/architecture.md").partition("## What is on the broker")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    assert len(found) > 10 and found == documented


def test_every_metric_is_documented_and_no_other() -> None:
    health = HealthSnapshot(
        status="ok",
        node="n1",
        owner="n1:1",
        version="1",
        started_at=datetime.now(UTC),
        queue="connected",
        in_flight=0,
        shutting_down=False,
        seats=(),
        lease_ttl_s=45,
        nodes=1,
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(lambda: health))
    found = {f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()}
    assert found == set(re.findall(r"`(crewlet_\w+)`", text_of("docs/how-to/at-night.md")))


def test_every_route_is_documented_and_no_other() -> None:
    routes = create_app(Mock()).openapi()["paths"]
    found = {f"{method.upper()} {path.replace(':path', '')}" for path, methods in routes.items() for method in methods}
    table = "".join(line for line in text_of("docs/http.md").splitlines() if line.startswith("| `"))
    assert found == set(re.findall(r"`((?:GET|POST|DELETE) [^`]+)`", table))


def test_every_word_of_a_refusal_is_documented_and_no_other() -> None:
    code = "".join(text for path, text in CODE.items() if path.parent.name == "web")
    found = set(re.findall(r'\b[45]\d\d(?:,|:) "([a-z_]+)"', code)) | {"unavailable", "fleet_unavailable"}
    table = text_of("docs/http.md").partition("| status | words |")[2].partition("\n\n")[0]
    assert found == set(re.findall(r"`([a-z_]+)`", table))


def told_to_run() -> Iterator[tuple[str, list[str]]]:
    """The commands that the documents tell people to run, with the place."""
    for path in GUIDES:
        text = path.read_text("utf-8")
        blocks = re.findall(r"```(?:sh|console)?\n(.*?)```", text, re.DOTALL)
        lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
        spans = re.findall(r"`(crewlet [^`]+)`", text)
        for line in [*lines, *spans]:
            found = re.search(r"(?:^|&& |\b)crewlet ((?:[a-z]+|--version)\b.*)", line)
            if found and not line.startswith(("docker", "crewlet up:")):
                words = shlex.split(re.split(r" (?:#|&&|\||&|>)|;", found[1])[0].replace("…", "x"))
                yield f"{path.relative_to(ROOT)}: {line}", words


COMMAND_LINES = [line for line in told_to_run() if line[1][0] in COMMANDS]


def test_most_commands_are_told_somewhere() -> None:
    told = {words[0] for _, words in COMMAND_LINES}
    assert told | {"version"} == set(COMMANDS)


@pytest.mark.parametrize(("place", "words"), COMMAND_LINES, ids=[place for place, _ in COMMAND_LINES])
def test_every_command_and_option_of_the_documents_is_there(place: str, words: list[str]) -> None:
    command = load(words[0])
    for word in words[1:]:
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
    alternatives = {name for word in words for name in word.split("|") if name in getattr(command, "commands", {})}
    commands = [command.commands[name] for name in alternatives] or [command]
    options = {option for each in commands for parameter in each.params for option in parameter.opts}
    for word in words[1:]:
        if word.startswith("-") and not re.fullmatch(r"-h|-", word):
            assert word.partition("=")[0] in options, f"{place}: {word} is none of {sorted(options)}"
