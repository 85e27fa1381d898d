"""References to environment variables in a text: `${NAME}`, and `$${` for a literal `${`."""

import re
from collections.abc import Callable

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}\n]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class NotAReference(ValueError):
    """A `${` that does not begin a reference; the message is what stands there."""


class UnsetVariable(LookupError):
    """A reference to a variable that is not set; the message is its name."""


def substitute(text: str, variable: Callable[[str], str | None]) -> str:
    """The text with each reference replaced.

    Args:
        variable: the value of a variable by its name; None when it is not set.

    Raises:
        NotAReference, UnsetVariable: see there.
    """

    def value(match: re.Match[str]) -> str:
        name = _name(match)
        if name is None:
            return "${"
        found = variable(name)
        if found is None:
            raise UnsetVariable(name)
        return found

    return _REFERENCE.sub(value, text) if "${" in text else text


def referenced(text: str) -> tuple[str, ...]:
    """The names that a text refers to, in its order.

    Raises:
        NotAReference: see there.
    """
    return tuple(name for match in _REFERENCE.finditer(text) if (name := _name(match)) is not None)


def _name(match: re.Match[str]) -> str | None:
    name: str | None = match.group(1)
    if name is None:
        return None
    if not match.group(0).endswith("}") or not _NAME.fullmatch(name):
        raise NotAReference(match.group(0))
    return name
