"""A folder that a node cannot have: one sentence, and a code that says whether starting again may help."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crewlet.cli import main
from crewlet.kit.unusable import Unusable
from crewlet.supervisor import parent, runlock
from crewlet.supervisor.broker import Broker, BrokerPlan, BrokerRefused
from crewlet.supervisor.plan import UpPlan

Break = Callable[[Path], None]


def a_file(folder: Path) -> None:
    folder.write_text("")


def its_parent_a_file(folder: Path) -> None:
    folder.parent.write_text("")


def a_link_to_nowhere(folder: Path) -> None:
    folder.parent.mkdir()
    folder.symlink_to("/nowhere/at/all")


def its_run_a_file(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run").write_text("")


WAYS = [
    (a_file, "f/d: it is not a folder"),
    (its_parent_a_file, "f: it is not a folder"),
    (a_link_to_nowhere, "f/d: a link that leads nowhere"),
    (its_run_a_file, "f/d/run: it is not a folder"),
]


@pytest.fixture(params=WAYS, ids=[way.__name__ for way, _ in WAYS])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A folder that cannot be used, and what is to be said of it."""
    way, says = request.param
    folder = tmp_path / "f" / "d"
    if way is a_file:
        folder.parent.mkdir()
    way(folder)
    return folder, f"{tmp_path}/{says}; name one that this user may write to"


def test_up_and_a_bare_node_refuse_a_data_directory_alike(
    broken: tuple[Path, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, says = broken
    sentence = f"node.data_dir {folder} cannot be used: {says}.\n"
    assert parent.run(UpPlan(folder, ("true",))) == 78
    assert capfd.readouterr().err == f"crewlet up: {sentence}"
    settings = tmp_path / "crewlet.yaml"
    settings.write_text(f"node: {{data_dir: {folder}}}\n")
    (tmp_path / "company.yaml").write_text("name: x\nroles: [{handle: a, runner: {type: script}}]\n")
    node = [sys.executable, "-m", "crewlet.cli", "node", "--config", str(settings)]
    done = subprocess.run(node, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (78, f"crewlet: {sentence}")
    assert main(["validate", "--config", str(settings)]) == 0
    assert f"node.data_dir {folder} cannot be used on this machine" in capfd.readouterr().err


def test_a_brokers_store_directory_is_refused_as_its_plan_is(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(BrokerRefused, match="it is not a folder; name one that this user may write to"):
        Broker.launch(BrokerPlan(store_dir=tmp_path / "f" / "d"))


def test_a_full_disk_is_not_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runlock, "take", full)
    assert parent.run(UpPlan(tmp_path, ("true",))) == 1
    assert capfd.readouterr().err == (
        f"crewlet up: node.data_dir {tmp_path} cannot be used: no space left on device; make room.\n"
    )


@pytest.mark.parametrize(("number", "may_pass"), [(errno.EDQUOT, True), (errno.EACCES, False), (errno.EROFS, False)])
def test_what_may_pass_is_told_from_what_a_person_has_to_change(number: int, may_pass: bool) -> None:
    assert Unusable(OSError(number, "so it is", "/d")).may_pass is may_pass


def test_who_may_not_read_a_file_is_not_told_so_by_the_command_lines_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "crewlet.yaml"
    settings.write_text("nmae: x")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert main(["validate", "--config", str(settings)]) == 78
    assert "this key is not known" in capsys.readouterr().err
