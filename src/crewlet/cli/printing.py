"""Printing results: aligned columns for people, JSON for programs."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crewlet.kit import wording

wants_json = False
"""Whether the command that runs was asked for JSON: then its failure is told as JSON too."""


def print_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """Columns under a header; `empty` is said on standard error when there are no rows."""
    if not rows:
        if empty:
            print(empty, file=sys.stderr)
        return
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in (list(header), *cells)) for index in range(len(header))]
    print(emphasized(_row(header, widths)))
    for row in cells:
        print(_row(row, widths))


def print_facts(facts: Mapping[str, object]) -> None:
    """`name  value` lines; facts that are None or empty are left out."""
    shown = {name: clean(value) for name, value in facts.items() if value not in (None, "", ())}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        print(f"{emphasized(name.ljust(width))}  {value}")


def instant(text: str | None) -> str | None:
    """An instant of the API, for people: to the second. None stays None."""
    return wording.instant(datetime.fromisoformat(text)) if text else None


def clean(value: object) -> str:
    """A cell on one line: nothing that came from elsewhere can steer the terminal."""
    if value is None or value == "":
        return "-"
    return "".join(char if char.isprintable() else "?" for char in str(value))


def emphasized(text: str) -> str:
    """Bold on a terminal that wants it."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[1m{text}\x1b[0m" if wanted else text


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
