"""Numbers on the command line: each with its range, which the refusal names."""

import math
import re
from collections.abc import Callable

import typer

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


def whole(low: int, high: int) -> Callable[[str | int], int]:
    """Reads a whole number from `low` to `high`; a default is read too."""

    def parse(given: str | int) -> int:
        text = str(given)
        if not _WHOLE.fullmatch(text.strip()) or not low <= int(text) <= high:
            raise typer.BadParameter(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def number(low: float, high: float) -> Callable[[str | float], float]:
    """Reads a number from `low` to `high`; a default is read too."""

    def parse(given: str | float) -> float:
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise typer.BadParameter(f"{given!r} is not a number from {_shown(low)} to {_shown(high)}")
        return value

    return parse


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"
