"""What is said in the log of whatever runs in one context: a turn's lines name their turn.

One context variable for all names together, since a turn sets them and takes them back: a variable for each, as the
logging library keeps them, costs a turn without a log line as much as the rest of its set-up.
"""

from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any

LogContext = Token[Mapping[str, object]]

_bound: ContextVar[Mapping[str, object]] = ContextVar("log_context", default=MappingProxyType({}))


def names() -> Mapping[str, object]:
    """What every line of this context says beside its own."""
    return _bound.get()


def bind(more: Mapping[str, object]) -> LogContext:
    """Have these names as well in every line of this context from now on, until `reset`."""
    return _bound.set({**_bound.get(), **more})


def reset(before: LogContext) -> None:
    """Take back what `bind` did, in the context in which it did it."""
    _bound.reset(before)


@contextmanager
def bound(more: Mapping[str, object]) -> Generator[None]:
    """`bind` for the body."""
    before = bind(more)
    try:
        yield
    finally:
        reset(before)


def merge(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that puts the names into a line, behind what the line says itself."""
    del logger, method
    return {**_bound.get(), **event}
