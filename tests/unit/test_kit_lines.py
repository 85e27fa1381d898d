"""Texts of others as one line."""

import pytest

from crewlet.kit.lines import last_words, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  two\r\n\twords ", "two words"),
        ("\x1b[31mred\x07", "[31mred"),
        ("abc\u202etxt.exe\u2066x\u2069", "abc txt.exe x"),
        ("a\ud800b\u2028c\ufeff", "a b c"),
        ("grüße 😀", "grüße 😀"),
        ("12345678901", "1234567890…"),
        ("", ""),
    ],
)
def test_nothing_is_left_that_a_terminal_obeys_or_a_store_cannot_keep(text: str, line: str) -> None:
    assert one_line(text, 10 if text[:1] == "1" else 100) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\r\n", ""),
        ("oh no\n", "oh no"),
        (
            "Traceback:\n  File a,\n\n    x()\nValueError: oops\n",
            "ValueError: oops (before that: Traceback: File a, x())",
        ),
        ("a\n\x1b\n", "a"),
    ],
)
def test_of_what_a_program_wrote_the_last_line_comes_first(text: str, line: str) -> None:
    assert last_words(text) == line
