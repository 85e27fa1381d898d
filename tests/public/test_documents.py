"""The documents say what is true."""

import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED_TESTS = re.compile(r"`(?:pytest )?((?:tests/|test_\w+\.py)[^`]*)`")

_CONTRACTS = "".join(path.read_text("utf-8").lower() for path in (ROOT / "src/crewlet/testing/contracts").glob("*.py"))
"""Whose functions are the parameters of tests."""


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]


def test_every_relative_link_of_the_documents_leads_somewhere() -> None:
    for document in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            page = document.parent / path if path else document
            place = f"{document.relative_to(ROOT)} links to {target}"
            assert page.exists(), place
            assert not anchor or anchor in _anchors(page), place


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_test_that_a_document_names_is_there() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for named in _NAMED_TESTS.findall(document.read_text(encoding="utf-8")):
            words = shlex.split(named)
            chosen = " ".join(word for before, word in pairwise(words) if before == "-k")
            names = [word for word in words if word.startswith(("tests/", "test_"))]
            text = _CONTRACTS + "".join(_tests_in(name.partition("::")[0]) for name in names)
            for part in set(re.findall(r"\w+", chosen)) - {"and", "or", "not"}:
                assert part.lower() in text, f"{document.relative_to(ROOT)}: {named} chooses no test by {part}"


@cache
def _tests_in(name: str) -> str:
    """The names and texts of the modules that a document means, in lower case."""
    found = [*ROOT.glob(name)] if "/" in name else [*(ROOT / "tests").rglob(name)]
    assert found, f"a document names {name}, which is not there"
    files = [file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return "".join(f"{file.name}\n{file.read_text(encoding='utf-8')}" for file in files).lower()


def test_every_event_of_the_logs_catalogue_is_logged_by_the_code_and_none_stands_there_twice() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "src/crewlet").rglob("*.py"))
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs/log.md").read_text("utf-8"), re.MULTILINE)
    events = [event for row in rows for event in re.findall(r"`([^`]+)`", row)]
    assert len(events) > 200 and sorted(set(events)) == sorted(events)
    made = {"schedule_skipped_paused", "schedule_skipped_catchup", "schedule_refused"}
    assert [event for event in events if f'"{event}"' not in code and event not in made] == []
    assert 'f"schedule_{fire.state}"' in code


def test_no_document_or_module_names_a_place_of_one_machine() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"/(work|root)/", path.read_text(encoding="utf-8")), path


def test_the_lock_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "http://" not in text and "https://" not in text and "--index" not in text
