"""Texts of others as one line for people. Pure."""

import re

_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def one_line(text: str, max_chars: int) -> str:
    """A text on one line, cut to a length, with nothing in it that a terminal obeys or a store cannot keep."""
    line = " ".join(_UNPRINTED.sub(" ", text).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def last_words(text: str) -> str:
    """What a program wrote, on one line: its last line first, as that mostly says why, and then those before it."""
    *before, last = [line for each in text.splitlines() if (line := one_line(each, len(each)))] or [""]
    return f"{last} (before that: {' '.join(before)})" if before else last
