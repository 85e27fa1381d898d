"""What the checking seats find, and what they leave alone."""

from pathlib import Path

import docs_desk  # noqa: F401 # pyright: ignore[reportUnusedImport] - puts the programs on the path
import links
import prose
import pytest
from desk import Blocked, Mail
from intake import receive
from markup import Block
from papers import Document, Findings, safe_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guide").mkdir()
    (tmp_path / "README.md").write_text("# Top\n\n## Part one\n")
    (tmp_path / "guide" / "a b.md").write_text("# Second page\n")
    (tmp_path / "guide" / "README.md").write_text("# Guide\n")
    (tmp_path / "code.py").write_text("x = 1\n")
    return tmp_path


def rules(text: str, folder: Path | None, path: str = "guide/page.md") -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in links.check(Document(path, text), folder).findings]


@pytest.mark.parametrize(
    "good",
    [
        "[x](../README.md)",
        "[x](../README.md#part-one)",
        "[x](/README.md#top)",
        "[x](a%20b.md#second-page)",
        "[x](<a b.md>)",
        "[x](../guide)",
        "[x](../guide/#guide)",
        "[x](../code.py#L1)",
        "[x](#)",
        "[x](#top)",
        "[x](https://example.org/nothing#there)",
        "[x](mailto:a@b.c)",
        "[x](../README.md?plain=1)",
    ],
)
def test_a_link_that_leads_somewhere_is_left_alone(folder: Path, good: str) -> None:
    assert rules(good, folder) == []


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        ("[x](nothing.md)", "missing-file"),
        ("[x](../README.md#part-two)", "missing-anchor"),
        ("[x](#here)", "missing-anchor"),
        ("[x](../guide#nothing)", "missing-anchor"),
        ("[x](../../secret)", "leaves-the-documents"),
        ("[x](/../secret)", "leaves-the-documents"),
        ("[x][y]", "undefined-reference"),
    ],
)
def test_a_link_that_leads_nowhere_is_found_on_its_line(folder: Path, bad: str, rule: str) -> None:
    assert rules(f"# A\n\ntext {bad}\n", folder) == [(3, rule)]


def test_the_nearest_anchor_is_named(folder: Path) -> None:
    (finding,) = links.check(Document("page.md", "[x](README.md#part-On)"), folder).findings
    assert "`#part-one`" in finding.text


def test_without_a_folder_only_links_inside_the_document_are_judged() -> None:
    findings = links.check(Document("page.md", "# A\n\n[x](nothing.md) [y](#a) [z](#b)\n"), None)
    assert [finding.rule for finding in findings.findings] == ["missing-anchor"]
    assert findings.facts["to files (no DOCS_ROOT, not checked)"] == "1"


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("cat", 1),
        ("reader", 2),
        ("make", 1),
        ("table", 2),
        ("wanted", 2),
        ("walked", 1),
        ("boxes", 2),
        ("likes", 1),
        ("readability", 5),
        ("syllable", 3),
        ("well-known", 2),
        ("don't", 1),
        ("rhythm", 1),
        ("nth", 1),
    ],
)
def test_syllables_are_counted(word: str, count: int) -> None:
    assert prose.syllables(word) == count


def test_reading_ease_is_fleschs_formula() -> None:
    findings = prose.check(Document("a.md", "The cat sat on the mat. The dog ran.\n"))
    assert findings.facts["sentences"] == "2" and findings.facts["words"] == "9" and findings.facts["syllables"] == "9"
    assert findings.facts["Flesch reading ease"] == f"{206.835 - 1.015 * 4.5 - 84.6:.1f}"
    assert findings.facts["Flesch-Kincaid grade"] == f"{0.39 * 4.5 + 11.8 - 15.59:.1f}"


def test_sentences_end_where_a_reader_ends_them() -> None:
    text = "Use e.g. tabs. Version 2.15 is out! Is it?\nYes (it is.) See fig. 3 there"
    found = [(sentence.line, sentence.text) for sentence in prose.sentences(Block(7, text))]
    assert found == [
        (7, "Use e.g. tabs."),
        (7, "Version 2.15 is out!"),
        (7, "Is it?"),
        (8, "Yes (it is.)"),
        (8, "See fig. 3 there"),
    ]


def test_a_long_sentence_is_named_with_the_line_on_which_it_begins() -> None:
    text = f"Short one.\nAnother one. But {'so on ' * 15}\ngoes on.\n"
    (finding,) = prose.check(Document("a.md", text)).findings
    assert (finding.line, finding.rule) == (2, "long-sentence")
    assert finding.text.startswith("33 words: “But so on")


def test_a_repeated_word_is_found() -> None:
    (finding,) = prose.check(Document("a.md", "This is the the end.\n")).findings
    assert finding.rule == "repeated-word"


def test_code_and_headings_are_not_prose() -> None:
    assert prose.check(Document("a.md", "# A heading\n\n```\nSome code here.\n```\n")).facts["words"] == "0"


def test_findings_and_documents_survive_the_mail() -> None:
    document = Document("ä/b.md", "text “x”\n")
    assert Document.read(Mail("1", "seat:intake-1", "", document.body())) == document
    findings = links.check(Document("b.md", "[x](#y)"), None)
    assert Findings.read(Mail("1", "seat:links-1", "", findings.body())) == findings


@pytest.mark.parametrize("body", ["", "hello", "[]", "{}", '{"kind": "other", "path": "a", "key": "b"}'])
def test_mail_that_is_no_finding_is_blocked_not_crashed_on(body: str) -> None:
    with pytest.raises(Blocked):
        Findings.read(Mail("1", "person", "", body))


@pytest.mark.parametrize("subject", ["", " ", "/etc/passwd", "../a.md", "a/../../b.md", "a\0b"])
def test_a_path_that_leads_out_of_the_folder_is_refused(subject: str) -> None:
    with pytest.raises(Blocked):
        safe_path(subject)


def test_intake_takes_a_document_without_a_path_and_no_empty_one() -> None:
    named = receive(Mail("1", "person", "", "\ufeff# Hi\r\n"))
    assert named is not None and named.text == "# Hi\n" and named.path.startswith("untitled-")
    assert receive(Mail("1", "person", "a.md", " \n")) is None
