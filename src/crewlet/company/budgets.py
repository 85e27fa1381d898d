"""What may be spent, and how it is read: `timezone:` of the company, and `budget:` of the company and of its roles."""

from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crewlet.kit.fields import Field

MAX_TOKENS: Final = 10**15 - 1
_WINDOWS: Final = ("day", "week", "month")


_OWN_TO_A_MACHINE: Final = frozenset({"localtime", "posixrules", "Factory"})
"""Files beside the zones: another machine has others under these names, or none."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most tokens, in and out, that may be spent in a window; None sets no limit, 0 allows nothing."""

    day: int | None = None
    week: int | None = None
    month: int | None = None


UNLIMITED: Final = Budget()


def read_budget(field: Field) -> Budget:
    """The caps of a company or a role.

    Raises:
        ConfigRefused: with source, line, field and remedy.
    """
    block = field.block(_WINDOWS)
    caps = {window: cap.integer(0, MAX_TOKENS) for window in _WINDOWS if (cap := block.get(window)) is not None}
    if not caps:
        field.refuse("this budget limits nothing", "write `day:`, `week:` or `month:` with a number of tokens")
    return Budget(**caps)


def read_timezone(field: Field) -> str:
    """The name of a zone, as `Europe/Berlin`.

    Raises:
        ConfigRefused: there is no such zone on this machine.
    """
    name = field.line_of_text()
    if name != "UTC":
        try:
            if name in _OWN_TO_A_MACHINE:
                raise ValueError(name)
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            field.refuse(f"{name!r} is no time zone that is known here", "write one like `Europe/Berlin`, or `UTC`")
    return name
