"""Python seats in the company document."""

import json
from pathlib import Path

import pytest

from crewlet.cli import main
from crewlet.company.document import parse_company
from crewlet.company.model import PythonRunner, Runner
from crewlet.kit.refusal import ConfigRefused


def _runner(fields: str, folder: Path | None = Path("/c")) -> Runner:
    text = f"name: c\nroles:\n  - handle: a\n    runner: {{type: python, {fields}}}\n"
    return parse_company(text, "c.yaml", folder=folder).seats[0].runner


def test_a_python_seat_names_a_function_and_where_it_is() -> None:
    fields = 'target: "desk.agents:Agent.run", path: seats, env: {A: b}, timeout_s: 2.5'
    assert _runner(fields) == PythonRunner("desk.agents:Agent.run", "/c/seats", {"A": "b"}, 2.5)


def test_without_a_path_it_is_looked_for_beside_the_document() -> None:
    assert _runner('target: "agents:run"') == PythonRunner("agents:run", "/c")
    assert _runner('target: "agents:run"', None) == PythonRunner("agents:run")


@pytest.mark.parametrize(
    "target", ["agents", "agents:", ":run", "agents.py:run()", "a-b:run", "class:run", "a:b:c", "/x/a:run"]
)
def test_what_names_no_function_is_refused_in_one_sentence(target: str) -> None:
    with pytest.raises(ConfigRefused, match="names no function of a module; write `module:function`") as refused:
        _runner(f'target: "{target}"')
    assert "c.yaml:4: roles[0].runner.target" in str(refused.value)


def test_keys_of_other_runners_are_refused() -> None:
    with pytest.raises(ConfigRefused, match="command"):
        _runner('target: "a:b", command: sh')


@pytest.mark.parametrize(("env", "is_told"), [("{}", True), ("{PYTHONPATH: packages}", False)])
def test_validate_tells_of_a_module_that_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], env: str, is_told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    (tmp_path / "crewlet.yaml").touch()
    (tmp_path / "company.yaml").write_text(
        "name: Desk\nroles:\n"
        "  - {handle: a, runner: {type: python, target: 'here:run'}}\n"
        "  - {handle: b, runner: {type: python, target: 'json:run'}}\n"
        f"  - {{handle: c, runner: {{type: python, target: 'no_such_module:run', env: {env}}}}}\n"
    )
    assert main(["validate", "-o", "json"]) == 0
    told = f"seat 'c' calls 'no_such_module:run', whose module is not in {tmp_path} nor installed."
    assert json.loads(capsys.readouterr().out)["warnings"] == ([told] if is_told else [])
