"""How a bug is planted, and taken out again."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Plant = Callable[[ExitStack], None]

_PLANTS: dict[str, Plant] = {}


def plant(name: str) -> Callable[[Plant], Plant]:
    """Keep a function that plants the bug of that name, for as long as the stack lasts."""

    def keep(function: Plant) -> Plant:
        _PLANTS[name] = function
        return function

    return keep


def put(stack: ExitStack, owner: object, attribute: str, replacement: object) -> Any:
    """Replace something for as long as the stack lasts; returns what it was."""
    original = getattr(owner, attribute)
    stack.enter_context(patch.object(owner, attribute, replacement))
    return original


@contextmanager
def planted(name: str) -> Generator[None]:
    """The code with one bug in it."""
    with ExitStack() as stack:
        _PLANTS[name](stack)
        yield


def names() -> Sequence[str]:
    """Every planted bug."""
    return tuple(_PLANTS)
