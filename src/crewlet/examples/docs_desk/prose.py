"""Readability: how hard a document is to read, and which sentences make it so."""

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from desk import Outcome, Turn, choose, serve
from markup import Block, Markup, plain
from papers import PROSE, Document, Finding, Findings

LONG_SENTENCE_WORDS = 30
HARD_TO_READ = 30.0
"""Flesch reading ease below this is the prose of contracts."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]*(?=\s+[^a-z\s]|\s*$)")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|no|fig|dr|mr|mrs|ms|st)|\b[A-Z])\.$", re.IGNORECASE)
_VOWELS = re.compile(r"[aeiouyäöüáàâéèêëíîïóôúû]+")


class Sentence(NamedTuple):
    line: int
    text: str
    words: list[str]


class Measures(NamedTuple):
    """Counts over a text. `reading_ease` is Flesch's (0 hard, 100 easy), `grade` that of Flesch and Kincaid."""

    sentences: int
    words: int
    syllables: int

    @property
    def reading_ease(self) -> float:
        return 206.835 - 1.015 * self.words / self.sentences - 84.6 * self.syllables / self.words

    @property
    def grade(self) -> float:
        return 0.39 * self.words / self.sentences + 11.8 * self.syllables / self.words - 15.59


def work(turn: Turn) -> Outcome:
    lines: list[str] = []
    for mail in turn.mail:
        document = Document.read(mail)
        findings = check(document)
        turn.dwell(0.8)
        turn.send(choose("EDITOR_SEATS", document.path), findings.body(), subject=document.path)
        lines.append(f"{document.path}: {len(findings.findings)} findings in {findings.facts['sentences']} sentences")
    return Outcome("delivered", "; ".join(lines))


def check(document: Document) -> Findings:
    """Measure a document's prose: paragraphs and list items; headings, tables and code are none."""
    units = Markup.parse(document.text).prose
    found = [sentence for unit in units for sentence in sentences(unit) if sentence.words]
    words = [word for sentence in found for word in sentence.words]
    if not words:
        return Findings(PROSE, document.path, document.key, {"sentences": "0", "words": "0"}, [])
    measures = Measures(len(found), len(words), sum(map(syllables, words)))
    findings = [
        Finding(sentence.line, "long-sentence", f"{len(sentence.words)} words: “{_opening(sentence)}”")
        for sentence in found
        if len(sentence.words) > LONG_SENTENCE_WORDS
    ]
    findings += (
        Finding(sentence.line, "repeated-word", f"“{word} {word}” in “{_opening(sentence)}”")
        for sentence in found
        for word in _repeated(sentence)
    )
    if measures.reading_ease < HARD_TO_READ and measures.sentences >= 5:
        findings.append(Finding(0, "hard-to-read", f"a reading ease of {measures.reading_ease:.0f} is very hard prose"))
    facts = {
        "sentences": str(measures.sentences),
        "words": str(measures.words),
        "syllables": str(measures.syllables),
        "Flesch reading ease": f"{measures.reading_ease:.1f}",
        "Flesch-Kincaid grade": f"{measures.grade:.1f}",
    }
    return Findings(PROSE, document.path, document.key, facts, sorted(findings))


def sentences(unit: Block) -> Iterator[Sentence]:
    """Cut a paragraph or list item into sentences, each with the line on which it begins."""
    text = plain(unit.text)
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        piece = text[start:end]
        if _ABBREVIATION.search(piece) and end < len(text):
            continue
        if piece.strip():
            lead = len(piece) - len(piece.lstrip())
            line = unit.line + text.count("\n", 0, start + lead)
            yield Sentence(line, " ".join(piece.split()), _WORD.findall(piece))
        start = end


def syllables(word: str) -> int:
    """An estimate: groups of vowels, less the silent endings. 1 or more."""
    total = 0
    for part in word.lower().replace("\u2019", "'").split("-"):
        letters = part.split("'")[0]
        count = len(_VOWELS.findall(letters))
        is_silent_e = letters.endswith("e") and not letters.endswith(("le", "ee", "ie", "oe", "ye"))
        is_silent_ed = letters.endswith("ed") and not letters.endswith(("ted", "ded", "eed"))
        is_silent_es = letters.endswith("es") and not letters.endswith(
            ("ses", "xes", "zes", "ches", "shes", "ges", "ces", "ies", "ees", "oes")
        )
        total += max(1, count - (is_silent_e or is_silent_ed or is_silent_es))
    return max(1, total)


def _repeated(sentence: Sentence) -> list[str]:
    text = sentence.text
    return sorted(
        {match[1] for match in re.finditer(r"\b([^\W\d_]{2,}) \1\b", text) if match[1] not in ("had", "that")}
    )


def _opening(sentence: Sentence) -> str:
    text = sentence.text
    return text if len(text) <= 72 else text[:70].rsplit(" ", 1)[0] + " …"


if __name__ == "__main__":
    sys.exit(serve(work))
