"""Which documents the demo takes."""

from pathlib import Path

import pytest

from crewlet.testing.demo import documents
from crewlet.testing.demo.documents import NoDocuments, find_documents


def write(root: Path, *paths: str, text: str = "# Hi\n") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_documents_are_found_below_the_folder_and_named_by_their_path(tmp_path: Path) -> None:
    write(tmp_path, "README.md", "docs/a/b.MD", "docs/c.txt")
    library = find_documents(tmp_path, tmp_path)
    assert library.paths == ("README.md", "docs/a/b.MD")
    assert library.text("README.md") == "# Hi\n"


def test_what_nobody_wrote_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, ".git/a.md", ".venv/a.md", "node_modules/x/a.md", "build/a.md", "env/pyvenv.cfg", "env/lib/a.md")
    write(tmp_path, "empty.md", text="")
    write(tmp_path, "huge.md", text="x" * (documents.MAX_BYTES + 1))
    write(tmp_path, "real.md")
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    assert find_documents(tmp_path, tmp_path).paths == ("real.md",)


def test_there_are_never_too_many_and_the_upper_ones_come_first(tmp_path: Path) -> None:
    write(tmp_path, *(f"deep/{number}.md" for number in range(documents.MAX_DOCUMENTS)), "a.md", "z.md")
    paths = find_documents(tmp_path, tmp_path).paths
    assert len(paths) == documents.MAX_DOCUMENTS
    assert {"a.md", "z.md"} <= set(paths)


def test_the_current_folder_is_taken_where_it_has_documents_else_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, example = tmp_path / "here", tmp_path / "example"
    here.mkdir()
    write(example, "e.md")
    monkeypatch.chdir(here)
    assert find_documents(None, example).root == example
    write(here, "h.md")
    assert find_documents(None, example).root == here


def test_a_folder_that_was_asked_for_must_have_documents(tmp_path: Path) -> None:
    write(tmp_path / "example", "e.md")
    (tmp_path / "empty").mkdir()
    for asked in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(NoDocuments, match="give --docs"):
            find_documents(asked, tmp_path / "example")
