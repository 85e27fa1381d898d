"""Texts of others as one line for people. Pure."""

import re

_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def one_line(text: str, max_chars: int) -> str:
    """A text on one line, cut to a length, with nothing in it that a terminal obeys or a store cannot keep."""
    line = " ".join(_UNPRINTED.sub(" ", text).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"
