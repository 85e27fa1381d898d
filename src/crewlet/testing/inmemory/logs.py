"""What nodes log while a test runs: warnings alone, in a form that costs little."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import structlog

from crewlet.kit import logcontext

_WARNING = 30


def quiet_logs() -> Callable[[], None]:
    """Log warnings only, unless the tests have configured logging themselves. Returns what undoes it."""
    if structlog.is_configured():
        return _nothing
    structlog.configure(
        processors=[
            logcontext.merge,
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_WARNING),
        cache_logger_on_first_use=False,
    )
    return structlog.reset_defaults


@contextmanager
def no_logs() -> Generator[None]:
    """Log nothing in here."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_: Any, __: str, ___: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent


def _nothing() -> None:
    return
