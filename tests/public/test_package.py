"""What a user gets: the wheel, its data files, and the arrows between the packages."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_layers_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    return next(folder.glob("crewlet-*.whl"))


def test_the_wheel_carries_types_and_the_example_company(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "crewlet/py.typed" in names
    assert "crewlet/examples/docs_desk/company.yaml" in names
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    run = subprocess.run(
        [sys.executable, "-c", "import crewlet, crewlet.cli; print(crewlet.__file__)"],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout.strip() == str(tmp_path / "site" / "crewlet" / "__init__.py"), run.stderr


def test_every_package_says_what_belongs_in_it() -> None:
    packages = [path.parent for path in (ROOT / "src" / "crewlet").glob("*/__init__.py")]
    for package in packages:
        text = (package / "__init__.py").read_text(encoding="utf-8")
        assert "Belongs here:" in text and "Does not:" in text, package.name


def test_the_setup_installs_nothing_that_the_lock_does_not_pin(tmp_path: Path) -> None:
    lines = [line.strip() for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()]
    installs = [line for line in lines if "pip install" in line or "pip sync" in line]
    assert len(installs) == 3
    for line in installs:
        assert "--require-hashes" in line or {"--no-deps", "--no-build-isolation"} <= set(line.split()), line
    extract = next(line for line in lines if line.startswith("sed ")).replace("$(VENV)", str(tmp_path)).partition(" > ")
    shell = ["sh", "-c", extract[0]]
    got = subprocess.run(shell, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    assert got.startswith("uv==") and got.count("==") == 1 and got.count("--hash=sha256:") > 5
    assert got.splitlines()[-1].strip().startswith(("--hash", "#"))
