"""The desk's shared folder: a later tenure shuts out an earlier one, and a re-run changes nothing."""

import fcntl
from pathlib import Path

import docs_desk  # noqa: F401 # pyright: ignore[reportUnusedImport] - puts the programs on the path
import editor
import pytest
import store
from desk import Term, TryAgain
from papers import LINKS, PROSE, Findings
from store import StaleTerm, Store

FOUND = Findings(LINKS, "a/b.md", "key1", {"links": "3"}, [])
READ = Findings(PROSE, "a/b.md", "key1", {"words": "9"}, [])


def term(epoch: int, resource: str = "seat:editor-1") -> Term:
    return Term(resource, f"n1:{epoch}", epoch)


def test_the_first_findings_wait_for_the_second(tmp_path: Path) -> None:
    mine = Store(tmp_path, term(1))
    assert mine.keep(FOUND) == {LINKS: FOUND}
    assert mine.keep(READ) == {LINKS: FOUND, PROSE: READ}


def test_findings_on_another_text_of_the_document_are_not_merged(tmp_path: Path) -> None:
    mine = Store(tmp_path, term(1))
    mine.keep(FOUND)
    assert mine.keep(READ._replace(key="key2")) == {PROSE: READ._replace(key="key2")}


def test_the_next_tenure_finds_what_the_last_one_kept(tmp_path: Path) -> None:
    Store(tmp_path, term(1)).keep(FOUND)
    assert Store(tmp_path, term(2)).keep(READ) == {LINKS: FOUND, PROSE: READ}


def test_a_tenure_that_is_over_writes_nothing(tmp_path: Path) -> None:
    Store(tmp_path, term(2)).publish("a.md", "new")
    with pytest.raises(StaleTerm):
        Store(tmp_path, term(1)).publish("a.md", "old")
    with pytest.raises(StaleTerm):
        Store(tmp_path, term(1)).keep(FOUND)
    assert (tmp_path / "reports" / "a.md").read_text() == "new"
    assert not (tmp_path / "findings").exists()


def test_epochs_of_another_resource_do_not_count(tmp_path: Path) -> None:
    Store(tmp_path, term(9, "seat:editor-2")).publish("a.md", "x")
    Store(tmp_path, term(1)).publish("b.md", "y")


def test_a_busy_store_is_a_reason_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOCK_WAIT_S", 0.0)
    Store(tmp_path, term(1)).publish("a.md", "x")
    (lock,) = (tmp_path / "fences").glob("*.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TryAgain):
            Store(tmp_path, term(1)).publish("a.md", "y")


def test_a_busy_seat_keeps_no_other_seat_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOCK_WAIT_S", 0.0)
    Store(tmp_path, term(1, "seat:editor-1")).publish("a.md", "x")
    (lock,) = (tmp_path / "fences").glob("*.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Store(tmp_path, term(1, "seat:editor-2")).publish("b.md", "y")


def test_a_report_written_again_is_the_same_report_and_leaves_no_scraps(tmp_path: Path) -> None:
    kept = {LINKS: FOUND, PROSE: READ}
    Store(tmp_path, term(1)).publish("a/b.md", editor.report(kept))
    first = (tmp_path / "reports" / "a" / "b.md").read_bytes()
    Store(tmp_path, term(2)).publish("a/b.md", editor.report(kept))
    assert (tmp_path / "reports" / "a" / "b.md").read_bytes() == first
    assert [path.name for path in (tmp_path / "reports" / "a").iterdir()] == ["b.md"]
