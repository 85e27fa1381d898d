"""The pytest plugin as a user has it: in a pytest of its own, with the example of the how-to and without a company."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "testing-your-seats.md"
_PLAIN = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:asyncio",
    "-p",
    "no:xdist",
    "-p",
    "no:schemathesis",
    "-p",
    "no:playwright",
)


def _pytest(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:faker", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr


def _write_the_pages_example(folder: Path) -> None:
    for name, text in re.findall(r"```\w+\n# (\S+\.\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        (folder / name).write_text(text)


def test_the_example_of_the_page_passes_with_pytest_alone_and_beside_pytest_asyncio(tmp_path: Path) -> None:
    _write_the_pages_example(tmp_path)
    assert "4 passed" in (said := _pytest(tmp_path, *_PLAIN)), said
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    assert "4 passed" in (said := _pytest(tmp_path, "-p", "no:schemathesis", "-p", "no:playwright")), said


def test_a_failed_test_shows_what_happened_to_its_seats(tmp_path: Path) -> None:
    _write_the_pages_example(tmp_path)
    (tmp_path / "test_till.py").write_text(
        """
def test_it(company):
    company.tool_server("bank")
    mail = company.send("till", "700")
    company.run_until_idle()
    assert mail.outcome == "blocked"

class TestMethods:
    async def test_nothing(self, async_company):
        assert async_company.seats == ["till"]
"""
    )
    said = _pytest(tmp_path, *_PLAIN)
    assert "1 failed, 1 passed" in said
    assert "Crewlet: the seats" in said
    assert re.search(r"turn \w+ is recorded: delivered: charged", said), said


def test_where_no_test_asks_for_a_company_nothing_of_crewlet_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        """
import sys
def test_light():
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("crewlet", "msgspec", "pydantic", "structlog")}
    assert loaded == {"crewlet", "crewlet.testing", "crewlet.testing.plugin"}
"""
    )
    assert "1 passed" in (said := _pytest(tmp_path, *_PLAIN)), said


def test_a_document_that_is_not_there_or_not_valid_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(company): ...")
    assert re.search(r"ConfigRefused: .*company\.yaml", _pytest(tmp_path, *_PLAIN))
