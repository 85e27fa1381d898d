"""The units and manifests in `deploy/`: what they say is what Crewlet reads and returns."""

import configparser
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from crewlet.cli import REFUSED, USAGE, WEDGED
from crewlet.company.document import load_company
from crewlet.node.settings import load_settings
from crewlet.node.settings_model import CoordinationSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def service(unit: Path) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    parser.read(unit)
    return parser["Service"]


def documents() -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "crewlet.yaml").read_text())}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_again_what_was_wedged_and_never_what_was_refused(unit: Path) -> None:
    said = service(unit)
    never = {int(code) for code in said["RestartPreventExitStatus"].split()}
    assert said["Restart"] == "on-failure"
    assert never == {USAGE, REFUSED} and WEDGED not in never
    assert (said["Type"], said["TimeoutStopSec"], said["KillMode"]) == ("notify", "infinity", "mixed")


def test_the_watchdog_of_a_bare_node_comes_before_its_managers() -> None:
    (unit,) = [unit for unit in UNITS if "node" in unit.name]
    assert int(service(unit)["WatchdogSec"]) > CoordinationSettings().lease_ttl_seconds + 5


def test_the_manifests_documents_are_ones_that_a_node_takes(tmp_path: Path) -> None:
    data = documents()["ConfigMap"]["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    container = documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    environ = {each["name"]: "crewlet-1" for each in container["env"]}
    referenced = set(re.findall(r"\$\{(\w+)\}", data["crewlet.yaml"]))
    assert referenced <= environ.keys()
    settings = load_settings(tmp_path / "crewlet.yaml", environ=environ)
    assert settings.node.id == "crewlet-1"
    assert settings.stream.replicas == documents()["StatefulSet"]["spec"]["replicas"]
    assert settings.api.port == container["ports"][0]["containerPort"]
    assert load_company(settings.company).seats
