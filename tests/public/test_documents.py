"""The documents say what is true."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_relative_link_of_the_documents_leads_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def test_no_document_or_module_names_a_place_of_one_machine() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"/(work|root)/", path.read_text(encoding="utf-8")), path


def test_the_lock_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "http://" not in text and "https://" not in text and "--index" not in text
