"""All that is wrong with a file is told in one run, each with its place, and nothing that only follows from it."""

from pathlib import Path

import pytest

from crewlet.cli import main
from crewlet.company.document import parse_company
from crewlet.kit.refusal import MOST_REFUSALS, ConfigRefused, ManyRefused
from crewlet.node.settings import parse_settings

COMPANY = """\
name: Desk
nmae: x
notification_coalesce_max_batch: 0
timezone: Nowhere
units:
  - name: a
    parent: b
roles:
  - handle: Bad Handle
    runner: {type: command, command: "sh '", timeout_s: -1}
  - handle: ada
    kind: human
    runner: {type: script}
    unit: a
  - handle: bob
    title: ""
    runner: {type: script, steps: [{sleep: -1}, {send: {to: nobody, text: x}}]}
    tools: {servers: {t: {command: sh, call_timeout_s: 0}}}
    budget: {day: -1}
  - handle: bob
schedules:
  - {name: s, seat: nobody, every: 1s, message: x}
"""


def told(text: str) -> list[str]:
    with pytest.raises(ManyRefused) as refused:
        parse_company(text, "c.yaml", folder=Path("/"))
    return [f"{each.where}: {each.problem}" for each in refused.value.all]


def test_a_key_that_is_not_known_is_told_once_with_the_keys_of_what_it_stands_in() -> None:
    text = """\
name: Desk
roles:
  - {handle: a, runner: {type: python, target: "a:b", qqq: x}}
  - {handle: b, tools: {servers: {s: {command: sh, headers: {}, qqq: x}, t: {qqq: x}}}}
"""
    with pytest.raises(ManyRefused) as refused:
        parse_company(text, "c.yaml", folder=Path("/"))
    python, program = "env, path, target, timeout_s, type", "call_timeout_s, command, cwd, env, start_timeout_s"
    either = "call_timeout_s, command, cwd, env, headers, start_timeout_s, url"
    assert [str(each).removeprefix("c.yaml:").removesuffix(".") for each in refused.value.all] == [
        f"3: roles[0].runner.qqq: this key is not known; the keys here are {python}",
        f"4: roles[1].tools.servers.s.headers: this key is not known; the keys here are {program}",
        f"4: roles[1].tools.servers.s.qqq: this key is not known; the keys here are {program}",
        f"4: roles[1].tools.servers.t.qqq: this key is not known; the keys here are {either}",
        "4: roles[1].tools.servers.t: a tool server has either a command or a url; write `command:` or `url:`",
    ]


def test_everything_that_is_wrong_with_a_company_is_told_with_its_place() -> None:
    assert told(COMPANY) == [
        "c.yaml:2: nmae: this key is not known",
        "c.yaml:7: units[0].parent: there is no unit 'b'",
        "c.yaml:9: roles[0].handle: 'Bad Handle' cannot be a handle",
        "c.yaml:10: roles[0].runner.command: a quote or backslash in this command is not closed",
        "c.yaml:10: roles[0].runner.timeout_s: '-1' is not a number from 0.001 to 604800",
        "c.yaml:13: roles[1].runner: a person's role has none",
        "c.yaml:16: roles[2].title: this is empty",
        "c.yaml:17: roles[2].runner.steps[0].sleep: '-1' is not a number from 0 to 86400",
        "c.yaml:18: roles[2].tools.servers.t.call_timeout_s: '0' is not a number from 0.1 to 3600",
        "c.yaml:19: roles[2].budget.day: '-1' is not a whole number from 0 to 999999999999999",
        "c.yaml:20: roles[3].handle: the handle 'bob' is here twice (first on line 15)",
        "c.yaml:4: timezone: 'Nowhere' is no time zone that is known here",
        "c.yaml:3: notification_coalesce_max_batch: '0' is not a whole number from 1 to 100",
        "c.yaml:22: schedules[0].every: '1s' is not from 10s to 8784h",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "name: x\nunits: 7\nroles:\n  - {handle: a, unit: u}",
        "name: x\nunits:\n  - {nam: u}\nroles:\n  - {handle: a, unit: u}",
        "name: x\nroles: 7\nschedules:\n  - {name: s, seat: a, every: 1m, message: x}",
        "name: x\nroles:\n  - {handl: a}\nschedules:\n  - {name: s, seat: a, every: 1m, message: x}",
    ],
)
def test_what_only_follows_from_another_fault_is_not_told(text: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        parse_company(text, "c.yaml")
    found = refused.value.all if isinstance(refused.value, ManyRefused) else (refused.value,)
    assert not [each for each in found if "there is no" in each.problem]


def test_twenty_are_told_and_no_more() -> None:
    assert len(told("name: x\nroles:\n" + "  - {handle: A}\n" * 1000)) == MOST_REFUSALS == 20


def test_everything_that_is_wrong_with_the_settings_is_told_with_its_place() -> None:
    text = (
        "node: {id: a b, data_dir: /proc/x, max_concurrent: -1}\ncoordination: {type: raft, lease_ttl_seconds: .nan}\n"
        "stream: {sync: -1s}\napi: {port: -1}\nlogging: {level: loud}\nstartup_timeout_s: inf\n"
    )
    with pytest.raises(ManyRefused) as refused:
        parse_settings(text, Path("c.yaml"), environ={})
    assert [f"{each.where}: {each.problem}" for each in refused.value.all] == [
        "c.yaml:1: node.id: 'a b' cannot be a node id",
        "c.yaml:1: node.data_dir: /proc/x is no place for files: the system makes up what is in /proc",
        "c.yaml:1: node.max_concurrent: '-1' is not a whole number from 0 to 10000",
        "c.yaml:2: coordination.type: 'raft' is not known here",
        "c.yaml:2: coordination.lease_ttl_seconds: '.nan' is not a number from 3 to 3600",
        "c.yaml:3: stream.sync: '-1s' is no interval",
        "c.yaml:4: api.port: '-1' is neither auto nor a port from 0 to 65535",
        "c.yaml:5: logging.level: 'loud' is not known here",
        "c.yaml:6: startup_timeout_s: 'inf' is not a number from 1 to 3600",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "stream: {port: 4222}\napi: {port: 4222}",
            "c.yaml:2: api.port: 4222 is the port of stream.port too; give each its own.",
        ),
        (
            "node: {id: a}\ncoordination: {type: embedded-kv}\nstream:\n  port: 6001\n  cluster:\n    port: 6001\n"
            "    peers: ['localhost:6002', 'localhost:6003']",
            "c.yaml:5: stream.cluster.port: 6001 is the port of stream.port too; give each its own.",
        ),
    ],
)
def test_two_listeners_of_a_node_need_two_ports(text: str, sentence: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        parse_settings(text, Path("c.yaml"), environ={})
    assert str(refused.value) == sentence


def test_a_document_that_is_missing_is_told_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crewlet.yaml").write_text("node: {id: a}\ncompany: nosuch.yaml\n")
    assert main(["validate"]) == 78
    assert capsys.readouterr().err == (
        "crewlet: crewlet.yaml:2: company: the company document nosuch.yaml does not exist; "
        "write it, let `crewlet init` do it, or name another.\n"
    )


def test_a_data_directory_that_cannot_be_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crewlet.yaml").write_text("node: {data_dir: company.yaml/data}\n")
    (tmp_path / "company.yaml").write_text("name: x\n")
    assert main(["validate"]) == 0
    assert capsys.readouterr().err == (
        f"warning: node.data_dir {tmp_path}/company.yaml/data cannot be used on this machine: "
        f"{tmp_path}/company.yaml is not a folder.\n"
    )


@pytest.mark.parametrize("command", ["validate", "up-plan", "node"])
def test_the_command_line_tells_one_sentence_for_each(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crewlet.yaml").write_text("startup_timeout_s: 0\nnod: 1\n")
    assert main([command]) == 78
    assert [line.partition(";")[0] for line in capsys.readouterr().err.splitlines()] == [
        "crewlet: crewlet.yaml:2: nod: this key is not known",
        "crewlet: crewlet.yaml:1: startup_timeout_s: '0' is not a number from 1 to 3600",
    ]


NUMBERS = [
    (["seat", "send", "a", "x", "--timeout"], "a number from 0 to 31622400"),
    (["seat", "tail", "a", "--limit"], "a whole number from 1 to 200"),
    (["dlq", "list", "--limit"], "a whole number from 1 to 200"),
    *(
        (["budget", "set", "a", f"--{window}"], "a whole number from 0 to 999999999999999")
        for window in ("day", "week")
    ),
    (["sim", "--hours"], "a number from 0.01 to 10000"),
    (["sim", "--seed"], "a whole number from 0 to 9007199254740992"),
    (["sim", "--nodes"], "a whole number from 1 to 50"),
    (["schedule", "show", "a", "--limit"], "a whole number from 1 to 1000"),
    (["seat", "tail", "a", "--limit"], "a whole number from 1 to 200"),
    (["dlq", "list", "--limit"], "a whole number from 1 to 200"),
    (["seat", "send", "a", "b", "--timeout"], "a number from 0 to 31622400"),
    (["demo", "--seed"], "a whole number from 0 to 9007199254740992"),
]


def test_what_two_readers_of_a_block_refuse_is_told_once() -> None:
    said = told("name: x\nroles: [{handle: a, runner: {type: llm, models: [m]}}]")
    assert len(said) == len(set(said)) == 2


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e400", "x", ""])
@pytest.mark.parametrize(("command", "says"), NUMBERS)
def test_a_number_on_the_command_line_is_held_against_its_range(
    command: list[str], says: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, value]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"crewlet: {command[-1]}: {value!r} is not {says};")
