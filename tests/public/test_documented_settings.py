"""docs/settings.md names every key that is read, with the bounds and the default that are in force, and no other."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from crewlet.company.document import parse_company
from crewlet.kit.refusal import ConfigRefused
from crewlet.node.settings import Settings, parse_settings

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "settings.md").read_text("utf-8")
FILE = Path("/etc/crewlet/crewlet.yaml")

UNKNOWN = "qqqqqqqq"
MEMBER: Mapping[str, Any] = {
    "node": {"id": "n1"},
    "coordination": {"type": "embedded-kv"},
    "stream": {"cluster": {"port": 6222, "peers": [f"nats://m{number}.example:6222" for number in range(5)]}},
}
MEMBER["stream"]["cluster"]["secret"] = "s"
WITH: Mapping[str, Mapping[str, Any]] = {
    "stream.replicas": MEMBER,
    "stream.cluster": MEMBER,
    "stream.tls": {"coordination": {"type": "embedded-kv"}, "stream": {"type": "nats", "url": "nats://h:4222"}},
    "logging.file": {"logging": {"file": {"path": "log"}}},
}
"""What else has to be in the file for keys that begin so."""


def rows(heading: str) -> Iterator[tuple[list[str], str, str]]:
    """Of the first table below a heading: the keys, what they take, the default."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n\n|")[2].partition("\n\n")[0]
    for line in section.splitlines()[2:]:
        keys, takes, default = (cell.strip() for cell in line.strip("|").split(" | "))
        yield re.findall(r"`([^`]+)`", keys), takes, default


SETTINGS = {key: (takes, default) for keys, takes, default in rows("crewlet.yaml") for key in keys}
COMPANY = {key: takes for keys, takes, _ in rows("company.yaml") for key in keys}
RUNNERS = dict(re.findall(r"^\| `(command|python|llm|script)` \| (.*) \|$", TEXT, re.MULTILINE))


def settings_with(key: str, value: object) -> Settings:
    """The settings of a file that has this key, and what it needs beside it."""
    document: dict[str, Any] = next(
        (deepcopy(dict(WITH[begin])) for begin in WITH if key.startswith(begin)), dict[str, Any]()
    )
    *blocks, last = key.split(".")
    block = document
    for name in blocks:
        block = block.setdefault(name, {})
    block[last] = value
    return parse_settings(json.dumps(document), FILE, environ={})


def known_keys(read: Callable[[], object]) -> set[str]:
    """The keys that a refusal of `UNKNOWN` says there are."""
    with pytest.raises(ConfigRefused) as refusal:
        read()
    listed = re.search(rf"{UNKNOWN}: this key is not known; the keys here are ([a-z_, ]+)", str(refusal.value))
    assert listed is not None, refusal.value
    return set(listed[1].split(", "))


@pytest.mark.parametrize(
    "block", ["", "node.", "coordination.", "stream.", "stream.cluster.", "stream.tls.", "api.", "mail.", "logging."]
)
def test_every_key_of_the_settings_is_documented_and_no_other(block: str) -> None:
    documented = {key.removeprefix(block).partition(".")[0] for key in SETTINGS if key.startswith(block)}
    assert known_keys(lambda: settings_with(f"{block}{UNKNOWN}", 1)) == documented


def test_every_key_of_the_logs_file_is_documented_and_no_other() -> None:
    documented = {key.rpartition(".")[2] for key in SETTINGS if key.startswith("logging.file.")}
    assert known_keys(lambda: settings_with(f"logging.file.{UNKNOWN}", 1)) == documented


BOUNDED = {
    key: (float(bounds[1]), float(bounds[2]))
    for key, (takes, _) in SETTINGS.items()
    if (bounds := re.search(r"([0-9.]+) to ([0-9.]+)", takes)) and key not in ("node.id", "node.labels")
}


@pytest.mark.parametrize("key", BOUNDED)
def test_the_documented_bounds_of_a_setting_are_those_in_force(key: str) -> None:
    low, high = BOUNDED[key]
    for value in (low, high):
        settings_with(key, f"{value:.0f}")
    # 0 is a word of its own to the listener: it has none then.
    below = -1 if key == "api.port" else low - 1
    for value in (below, high + 1):
        with pytest.raises(ConfigRefused):
            settings_with(key, f"{value:.0f}")


@pytest.mark.parametrize(
    ("key", "default"),
    [(key, found[1]) for key, (_, text) in SETTINGS.items() if (found := re.fullmatch(r"`([^`]+)`", text))],
)
def test_a_documented_default_is_what_is_in_force_without_the_key(key: str, default: str) -> None:
    if key.startswith("stream.cluster."):
        without = settings_with("stream.cluster.port", 6222)
    elif key.startswith("logging.file."):
        without = settings_with("logging.file.path", "log")
    else:
        without = parse_settings("", FILE, environ={})
    assert settings_with(key, default) == without


@pytest.mark.parametrize(
    ("block", "document"),
    [
        ("", {UNKNOWN: 1}),
        ("units[].", {"units": [{"name": "u", UNKNOWN: 1}]}),
        ("roles[].", {"roles": [{"handle": "a", UNKNOWN: 1}]}),
    ],
)
def test_every_key_of_the_company_is_documented_and_no_other(block: str, document: dict[str, Any]) -> None:
    documented = {re.split(r"\[\]|\.", key.removeprefix(block))[0] for key in COMPANY if key.startswith(block)}
    assert known_keys(lambda: parse_company(json.dumps({"name": "c", **document}), "c")) == documented


def role(**more: object) -> str:
    return json.dumps({"name": "c", "roles": [{"handle": "a", **more}]})


@pytest.mark.parametrize(
    ("key", "document"),
    [
        ("budget", json.dumps({"name": "c", "budget": {UNKNOWN: 1}})),
        ("schedules[]", json.dumps({"name": "c", "schedules": [{"name": "s", UNKNOWN: 1}]})),
        ("roles[].placement", role(placement={UNKNOWN: 1})),
        ("roles[].tools.servers", role(tools={"servers": {"s": {UNKNOWN: 1}}})),
    ],
)
def test_every_key_of_a_block_of_the_company_is_named(key: str, document: str) -> None:
    named = set(re.findall(r"`([a-z_]+)[:`]", COMPANY[key]))
    assert known_keys(lambda: parse_company(document, "c")) == named


@pytest.mark.parametrize("kind", ["command", "python", "llm", "script"])
def test_every_key_of_a_runner_is_named(kind: str) -> None:
    text = re.sub(r"\([^)]*\)", "", RUNNERS[kind]).partition(", each")[0]
    named = {"type", *re.findall(r"`([a-z_]+)`", text)}
    assert known_keys(lambda: parse_company(role(runner={"type": kind, UNKNOWN: 1}), "c")) == named
