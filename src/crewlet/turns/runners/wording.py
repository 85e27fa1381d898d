"""What is wrong with a line of a program, in words for whoever wrote the program. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
_KINDS: Final[Mapping[str, str]] = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_SAYINGS: Final[tuple[tuple[re.Pattern[str], Callable[[str, "re.Match[str]"], str]], ...]] = (
    (re.compile(r"Invalid enum value (.+)"), lambda at, told: f"{at} is {told[1]}, which is not one of {_OUTCOMES}"),
    (re.compile(r"Object missing required field `(.+)`"), lambda at, told: f"{_below(at, told[1])} is missing"),
    (re.compile(r"Expected `(\w+)`, got `(\w+)`"), lambda at, told: f"{at} is {_kind(told[2])}, not {_kind(told[1])}"),
    (re.compile(r"Expected `str` of length >= (\d+)"), lambda at, told: f"{at} has fewer than {told[1]} characters"),
    (re.compile(r"Expected `str` of length <= (\d+)"), lambda at, told: f"{at} has more than {told[1]} characters"),
    (re.compile(r"Expected `\w+` >= (\S+)"), lambda at, told: f"{at} is less than {told[1]}"),
    (re.compile(r"Expected `\w+` <= (\S+)"), lambda at, told: f"{at} is more than {told[1]}"),
)
_OUTCOMES: Final = "delivered, no_action, blocked and failed"
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def invalid(error: msgspec.ValidationError) -> str:
    """Which field of a message is not what it must be, and what it is instead."""
    whole = _PLACE.fullmatch(str(error))
    what, path = (whole["what"], whole["path"] or "") if whole is not None else (str(error), "")
    for pattern, say in _SAYINGS:
        if told := pattern.fullmatch(what):
            return say(path or "the message", told)
    return f"{path or 'the message'} cannot be read: {what}"


def undecodable(line: bytes) -> str:
    """Why a line cannot be taken for JSON at all."""
    try:
        read = json.loads(line)
    except UnicodeDecodeError:
        return "not JSON, and not UTF-8 text either"
    except (ValueError, RecursionError):
        return "not JSON"
    # What the one reader takes and the other does not: JSON's letter allows it, and no store can keep it.
    if _LONE_SURROGATE.search(json.dumps(read, ensure_ascii=False)):
        return r"one half of a surrogate pair (\ud800 to \udfff without the other) is no text"
    return "a number is not finite or too large to be read"


def _below(at: str, name: str) -> str:
    return name if at == "the message" else f"{at}.{name}"


def _kind(name: str) -> str:
    return _KINDS.get(name, name)
