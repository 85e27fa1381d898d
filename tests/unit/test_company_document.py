"""The company document: what it gives, and one exact sentence for each thing that is wrong with it."""

import sys
import time
from pathlib import Path

import pytest

from crewlet.company.document import load_company, parse_company
from crewlet.company.model import (
    CommandRunner,
    Company,
    Fail,
    Placement,
    Reply,
    ScriptRunner,
    Seat,
    Send,
    Sleep,
)
from crewlet.kit.refusal import ConfigRefused

WHOLE = """\
name: Docs Desk
units:
  - name: desk
  - {name: checks, parent: desk}
roles:
  - handle: intake
    title: Takes documents in
    unit: desk
    placement: {node: core-1, labels: {zone: " eu ", gpu: true, bare: ""}}
    runner:
      type: command
      command: "{python} -m desk 'two words'"
      env: {MODE: strict, LEVEL: 3}
      cwd: seats
      timeout_s: 2.5
  - handle: checker
    runner:
      type: script
      steps:
        - reply: thanks
        - sleep: 0.5
        - send: {to: intake, text: done}
        - fail: enough
  - handle: idle
  - handle: ada
    kind: human
    title: Editor in chief
notification_coalesce_window_seconds: 1.5
notification_coalesce_max_batch: 50
"""


def test_a_document_becomes_the_company_it_describes(tmp_path: Path) -> None:
    (tmp_path / "company.yaml").write_text(WHOLE)
    assert load_company(tmp_path / "company.yaml") == Company(
        name="Docs Desk",
        seats=(
            Seat(
                handle="intake",
                title="Takes documents in",
                unit="desk",
                placement=Placement(node="core-1", labels=(("bare", ""), ("gpu", "true"), ("zone", "eu"))),
                runner=CommandRunner(
                    command=(sys.executable, "-m", "desk", "two words"),
                    env={"MODE": "strict", "LEVEL": "3"},
                    cwd=str(tmp_path / "seats"),
                    timeout_s=2.5,
                ),
            ),
            Seat("checker", runner=ScriptRunner((Reply("thanks"), Sleep(0.5), Send("intake", "done"), Fail("enough")))),
            Seat("idle"),
        ),
        people=("ada",),
        units={"desk": None, "checks": "desk"},
        coalesce_window_s=1.5,
        coalesce_max_batch=50,
    )


def test_a_command_without_a_folder_runs_in_the_documents_own(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "name: x\nroles: [{handle: a, runner: {type: command, command: [echo, '{python}']}}]"
    )
    assert load_company(tmp_path / "c.yaml").seats[0].runner == CommandRunner(("echo", "{python}"), cwd=str(tmp_path))


def test_words_that_yaml_reads_as_something_else_stay_as_they_are_written() -> None:
    company = parse_company("name: 22:22\nroles:\n  - {handle: no, title: 007}\n  - {handle: 0x1f}", "c.yaml")
    assert (company.name, company.seats[0].title) == ("22:22", "007")
    assert [seat.handle for seat in company.seats] == ["no", "0x1f"]


def role(text: str) -> str:
    return f"name: x\nroles:\n  - handle: a\n{text}"


def command(text: str) -> str:
    return role(f"    runner:\n      type: command\n{text}")


def steps(text: str) -> str:
    return role(f"    runner:\n      type: script\n      steps:\n{text}")


REFUSED = {
    "empty": ("", "c.yaml:1: 'name' is missing; write `name:` with the company's name."),
    "no mapping": ("- a", "c.yaml:1: the document must be a mapping; write `key: value` lines."),
    "broken yaml": (
        "name: x\nroles: [",
        "c.yaml:3: this is not YAML (did not find expected node content); "
        "check the indentation, quotes and brackets here.",
    ),
    "tab": (
        "name: x\nroles:\n\t- handle: a",
        "c.yaml:3: this is not YAML (found character that cannot start any token); indent with spaces, not tabs.",
    ),
    "duplicate key": (
        "name: x\nname: y",
        "c.yaml:2: the key 'name' is here twice (first on line 1); keep one of them.",
    ),
    "empty name": ("name: ''", "c.yaml:1: name: this is empty; write a value."),
    "null name": ("name:", "c.yaml:1: name: there is no value; write `name:` with the company's name."),
    "unknown key, near": (
        "name: x\nrolls: []",
        "c.yaml:2: rolls: this key is not known; the nearest known one is 'roles'.",
    ),
    "unknown key, far": (
        role("    zzz: 1"),
        "c.yaml:4: roles[0].zzz: this key is not known; "
        "the keys here are budget, handle, kind, placement, runner, title, tools, unit.",
    ),
    "roles no list": (
        "name: x\nroles: {a: 1}",
        "c.yaml:2: roles: this must be a list; write each member on its own line after `- `.",
    ),
    "no handle": (
        "name: x\nroles:\n  - title: b",
        "c.yaml:3: roles[0]: 'handle' is missing; write `handle:` with the seat's address.",
    ),
    **{
        f"handle {bad!r}": (
            f"name: x\nroles:\n  - handle: {bad}",
            f"c.yaml:3: roles[0].handle: {bad.strip(chr(34))!r} cannot be a handle; use 1 to 63 lower-case letters, "
            "digits and hyphens, beginning with a letter or digit.",
        )
        for bad in ("Alice", "-a", "a.b", '"*"', '">"', "a b", "ü", "a" * 64, "a_b")
    },
    "duplicate handle": (
        "name: x\nroles:\n  - handle: a\n  - handle: b\n  - title: t\n    handle: a",
        "c.yaml:6: roles[2].handle: the handle 'a' is here twice (first on line 3); rename one of them.",
    ),
    "a person and a seat": (
        "name: x\nroles:\n  - {handle: a, kind: human}\n  - handle: a",
        "c.yaml:4: roles[1].handle: the handle 'a' is here twice (first on line 3); rename one of them.",
    ),
    "unknown kind": (role("    kind: humane"), "c.yaml:4: roles[0].kind: 'humane' is not known here; write 'human'."),
    "a person with a runner": (
        role("    kind: human\n    runner: {type: script}"),
        "c.yaml:5: roles[0].runner: a person's role has none; remove it, or write `kind: agent`.",
    ),
    "unknown unit": (
        "name: x\nunits: [{name: desk}]\nroles:\n  - {handle: a, unit: dsk}",
        "c.yaml:4: roles[0].unit: there is no unit 'dsk'; the units are desk.",
    ),
    "no units at all": (
        role("    unit: desk"),
        "c.yaml:4: roles[0].unit: there is no unit 'desk'; add it to `units:`.",
    ),
    "duplicate unit": (
        "name: x\nunits:\n  - name: a\n  - name: a",
        "c.yaml:4: units[1].name: the unit 'a' is here twice (first on line 3); rename one of them.",
    ),
    "unknown parent": (
        "name: x\nunits:\n  - {name: a, parent: b}",
        "c.yaml:3: units[0].parent: there is no unit 'b'; the units are a.",
    ),
    "units in a circle": (
        "name: x\nunits:\n  - {name: a, parent: b}\n  - {name: b, parent: a}",
        "c.yaml:3: units[0].parent: the unit 'a' lies inside itself; give one of its parents another parent.",
    ),
    "placement key": (
        role("    placement: {label: {a: b}}"),
        "c.yaml:4: roles[0].placement.label: this key is not known; the nearest known one is 'labels'.",
    ),
    "placement node": (
        role("    placement: {node: a/b}"),
        "c.yaml:4: roles[0].placement.node: 'a/b' cannot be a node id; use 1 to 64 letters, digits, dots, underscores "
        "and hyphens, beginning with a letter or digit.",
    ),
    "label key with a space": (
        role("    placement: {labels: {a b: c}}"),
        "c.yaml:4: roles[0].placement.labels.a b: 'a b' cannot be a label key; use 1 to 63 bytes without spaces.",
    ),
    "label without a value": (
        role("    placement: {labels: {a: }}"),
        'c.yaml:4: roles[0].placement.labels.a: there is no value; write one, or "" for an empty text.',
    ),
    "labels equal once trimmed": (
        role("    placement:\n      labels:\n        a: b\n        ' a': b"),
        "c.yaml:7: roles[0].placement.labels. a: the label 'a' is here twice (first on line 6); keep one of them.",
    ),
    "no runner type": (
        role("    runner: {command: x}"),
        "c.yaml:4: roles[0].runner: 'type' is missing; write `type: llm`, `type: python`, `type: command` "
        "or `type: script`.",
    ),
    "unknown runner type": (
        role("    runner: {type: comand}"),
        "c.yaml:4: roles[0].runner.type: 'comand' is not known here; write 'command'.",
    ),
    "a key of the other runner": (
        command("      command: x\n      steps: []"),
        "c.yaml:7: roles[0].runner.steps: this key is not known; the keys here are command, cwd, env, timeout_s, type.",
    ),
    "no command": (
        role("    runner: {type: command}"),
        "c.yaml:4: roles[0].runner: 'command' is missing; write the program and its arguments.",
    ),
    "empty command": (
        command("      command: ''"),
        "c.yaml:6: roles[0].runner.command: the command names no program; write one, for instance `{python} agent.py`.",
    ),
    "open quote": (
        command('      command: run "it'),
        "c.yaml:6: roles[0].runner.command: a quote or backslash in this command is not closed; "
        "close it, or write the words as a list.",
    ),
    "null character": (
        command('      command: "a\\0b"'),
        "c.yaml:6: roles[0].runner.command: the command has a null character; remove it.",
    ),
    "variable name": (
        command("      command: x\n      env: {A=B: c}"),
        "c.yaml:7: roles[0].runner.env.A=B: 'A=B' cannot be the name of a variable; "
        "use letters, digits and underscores.",
    ),
    "relative folder of a text": (
        command("      command: x\n      cwd: y"),
        "c.yaml:7: roles[0].runner.cwd: 'y' is relative and this text has no folder; write an absolute path.",
    ),
    "time-out": (
        command("      command: x\n      timeout_s: 0"),
        "c.yaml:7: roles[0].runner.timeout_s: '0' is not a number from 0.001 to 604800; write such a number.",
    ),
    "unknown step": (
        steps("        - rply: x"),
        "c.yaml:7: roles[0].runner.steps[0].rply: this key is not known; the nearest known one is 'reply'.",
    ),
    "two keys in a step": (
        steps("        - reply: x\n          sleep: 1"),
        "c.yaml:7: roles[0].runner.steps[0]: a step is exactly one key; "
        "write one of reply, send, sleep, fail after each `- `.",
    ),
    "sleep": (
        steps("        - sleep: -1"),
        "c.yaml:7: roles[0].runner.steps[0].sleep: '-1' is not a number from 0 to 86400; write such a number.",
    ),
    "send to nobody": (
        steps("        - send: {to: aa, text: x}"),
        "c.yaml:7: roles[0].runner.steps[0].send.to: there is no seat 'aa'; the nearest handle is 'a'.",
    ),
    "send to a person": (
        steps("        - send: {to: b, text: x}") + "\n  - {handle: b, kind: human}",
        "c.yaml:7: roles[0].runner.steps[0].send.to: 'b' is a person's role, which has no inbox; "
        "send to a seat of an agent.",
    ),
    "window": (
        "name: x\nnotification_coalesce_window_seconds: 61",
        "c.yaml:2: notification_coalesce_window_seconds: '61' is not a number from 0 to 60; write such a number.",
    ),
    "batch": (
        "name: x\nnotification_coalesce_max_batch: 0",
        "c.yaml:2: notification_coalesce_max_batch: '0' is not a whole number from 1 to 100; write such a number.",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_with_a_document_is_told_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        parse_company(text, "c.yaml")
    assert str(refused.value) == sentence


def test_a_missing_document_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"company.yaml: the file does not exist; write one, or let `crewlet init`"):
        load_company(tmp_path / "company.yaml")


def test_a_folder_in_place_of_a_document_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match="this is a folder, not a file"):
        load_company(tmp_path)


def test_a_document_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"name: x\n# \xff\n")
    with pytest.raises(ConfigRefused, match=r"c.yaml:2: this line is not UTF-8 text"):
        load_company(tmp_path / "c.yaml")


def test_a_company_of_two_thousand_seats_is_read_quickly_enough_to_start_with() -> None:
    text = "name: x\nroles:\n" + "".join(f"  - handle: s{n}\n    title: Seat {n}\n" for n in range(2000))
    started = time.process_time()
    assert len(parse_company(text, "c.yaml").seats) == 2000
    assert time.process_time() - started < 30
