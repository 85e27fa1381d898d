"""The example companies, tested as their users test them: in memory, with faults."""

import sqlite3
from collections.abc import Generator
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import crewlet.examples
from crewlet.testing import InMemoryCompany
from crewlet.testing.modelserver import read_script

pytestmark = pytest.mark.usefixtures("warnings_only")

EXAMPLES = Path(crewlet.examples.__file__).parent


def _folder(name: str, tmp_path: Path) -> Path:
    """A copy of an example, as its README asks for."""
    return copytree(EXAMPLES / name, tmp_path / name, ignore=ignore_patterns("__pycache__"))


@pytest.fixture
def own_code(tmp_path: Path) -> Generator[InMemoryCompany]:
    with InMemoryCompany(_folder("own_code", tmp_path) / "company.yaml") as company:
        yield company


@pytest.fixture
def docs_desk(tmp_path: Path) -> Generator[InMemoryCompany]:
    with InMemoryCompany(_folder("docs_desk", tmp_path) / "company.yaml") as company:
        yield company


@pytest.fixture
def news_desk() -> Generator[InMemoryCompany]:
    with InMemoryCompany(EXAMPLES / "news_desk" / "company.yaml") as company:
        for handle, answers in read_script(EXAMPLES / "news_desk" / "script.json").items():
            company.script(handle, answers)
        yield company


def test_the_counter_answers_the_seat_that_wrote_once_whatever_its_node_does(own_code: InMemoryCompany) -> None:
    own_code.crash_before_ack("counter")
    mail = own_code.send("counter", "three words here", source="seat:lister")
    own_code.run_until_idle()
    own_code.assert_ran_once(mail)
    assert [run.outcome for run in mail.runs] == ["", "delivered"]
    (answer,) = own_code.mail_to("lister")
    assert answer.body == "3 words"
    assert own_code.posted(answer).detail.endswith("files at epoch 2"), "a shell script, as a real program"


def test_the_clerk_writes_each_entry_once_under_the_newest_epoch(own_code: InMemoryCompany, tmp_path: Path) -> None:
    own_code.crash_before_ack("clerk")
    mail = own_code.send("clerk", "two chairs")
    own_code.run_until_idle()
    own_code.assert_ran_once(mail)
    assert mail.detail == "entries written: 0", "the run that was recorded found the entry of the one that was not"
    assert _entries(tmp_path / "own_code") == [("two chairs", 1)]


def test_an_entry_after_a_takeover_carries_the_epoch_of_the_new_owner(
    own_code: InMemoryCompany, tmp_path: Path
) -> None:
    own_code.send("clerk", "two chairs")
    own_code.run_until_idle()
    own_code.add_node("n2")
    holder = own_code.holder("clerk")
    assert holder is not None
    own_code.crash(holder, restarts=False)
    mail = own_code.send("clerk", "a table")
    own_code.run_until_idle()
    own_code.assert_ran_once(mail)
    assert _entries(tmp_path / "own_code") == [("two chairs", 1), ("a table", 2)]


def _entries(folder: Path) -> list[tuple[str, int]]:
    with sqlite3.connect(folder / "books.sqlite") as store:
        return store.execute("SELECT text, epoch FROM entries ORDER BY rowid").fetchall()


def test_a_document_goes_through_the_docs_desk_to_its_report(docs_desk: InMemoryCompany, tmp_path: Path) -> None:
    text = (EXAMPLES / "docs_desk" / "documents" / "welcome.md").read_text(encoding="utf-8")
    mail = docs_desk.send("intake-1", text, subject="welcome.md")
    docs_desk.run_until_idle()
    docs_desk.assert_ran_once(mail)
    assert mail.detail == "welcome.md is being checked"
    report = tmp_path / "docs_desk" / "desk" / "reports" / "welcome.md"
    assert report.read_text(encoding="utf-8").startswith("# Report on welcome.md")


def test_an_intake_that_dies_between_its_two_mails_has_each_checker_work_once(docs_desk: InMemoryCompany) -> None:
    docs_desk.crash_at("intake-1", send=2)
    mail = docs_desk.send("intake-1", "# Hello\n\nIt is short.\n", subject="hello.md")
    docs_desk.run_until_idle()
    docs_desk.assert_ran_once(mail)
    assert len(mail.runs) == 2
    assert sorted(sent.to.partition("-")[0] for sent in docs_desk.mail_from("intake-1")) == ["links", "prose"]
    for sent in docs_desk.mail_from("intake-1"):
        docs_desk.assert_ran_once(docs_desk.posted(sent))


def test_the_news_desk_writes_its_headline(news_desk: InMemoryCompany) -> None:
    mail = news_desk.send("reader", "The new bridge opens on Monday …")
    news_desk.run_until_idle()
    news_desk.assert_ran_once(mail)
    (points,) = news_desk.mail_to("writer")
    assert news_desk.posted(points).detail.startswith("Six years on, the bridge opens")
    assert news_desk.spent(None) == 45


@pytest.mark.proves("FE-06")
def test_a_reader_that_lost_its_seat_while_it_thought_sends_its_points_once(news_desk: InMemoryCompany) -> None:
    news_desk.lose_lease_at("reader", round=1)
    mail = news_desk.send("reader", "The new bridge opens on Monday …")
    news_desk.run_until_idle()
    news_desk.assert_ran_once(mail)
    first, _ = mail.runs
    assert (first.outcome, first.calls) == ("fenced", [])
    assert len(news_desk.mail_to("writer")) == 1
