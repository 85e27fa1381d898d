"""Structured logs of this process: one event a line, on stderr, in a file, or both."""

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import structlog

from crewlet.adapters.system.logfile import LogFile
from crewlet.kit import logcontext

Form = Literal["json", "console"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NAMED = {"critical": logging.CRITICAL, **_LEVELS}


@dataclass(frozen=True, slots=True)
class FileLog:
    """A file beside stderr, or in its place. `level` and `form` are its own."""

    file: LogFile
    level: str
    form: Form


def configure_logs(
    *, level: str = "info", form: Form = "json", stderr: bool = True, file: FileLog | None = None
) -> None:
    """Send every event of this level and above to stderr.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `json` for machines, `console` for people.
        stderr: False sends them to the file alone. What a process says as it is ended goes to stderr all the same.
        file: where they go as well.
    """
    processors: list[structlog.typing.Processor] = [
        logcontext.merge,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    least = _LEVELS[level]
    if file is not None:
        processors.append(_IntoFile(file, stderr_level=_LEVELS[level] if stderr else None))
        least = min(least, _LEVELS[file.level]) if stderr else _LEVELS[file.level]
    structlog.configure(
        processors=[*processors, *_rendered(form, is_terminal=sys.stderr.isatty())],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=True,
    )
    # Libraries that log through the standard module speak up only when something is wrong.
    logging.basicConfig(level=logging.WARNING, handlers=[_AsEvents()])


def _rendered(form: Form, *, is_terminal: bool) -> list[structlog.typing.Processor]:
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # The plain formatter: the rich one prints local variables, which may hold secrets.
    return [structlog.dev.ConsoleRenderer(colors=is_terminal, exception_formatter=structlog.dev.plain_traceback)]


class _Stderr(structlog.WriteLogger):
    """Loses the line that cannot be written: neither a full disk nor a reader that is gone is the speaker's fault."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = msg


def _to_stderr(*_: Any) -> _Stderr:
    return _Stderr(sys.stderr)


class _IntoFile:
    """Writes an event to the file on its way to stderr, where it goes on or ends by the level there."""

    def __init__(self, log: FileLog, *, stderr_level: int | None) -> None:
        self._file = log.file
        self._level = _LEVELS[log.level]
        self._render = _rendered(log.form, is_terminal=False)
        self._stderr_level = stderr_level

    def __call__(self, logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        level = _NAMED.get(str(event.get("level")), logging.INFO)
        if level >= self._level:
            line: Any = dict(event)
            for processor in self._render:
                line = processor(logger, name, line)
            self._file.write(f"{cast(str, line)}\n")
        if self._stderr_level is None or level < self._stderr_level:
            raise structlog.DropEvent
        return event


class _AsEvents(logging.Handler):
    """What a library says through the standard module, as one more event."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        say = log.error if record.levelno >= logging.ERROR else log.warning
        try:
            said = record.getMessage()
        except Exception:  # noqa: BLE001
            said = f"{record.msg} {record.args}"  # they do not fit each other, which is no reason to break who said it
        say("library_said", library=record.name, said=said, exc_info=record.exc_info)
