"""What every test gets."""

import re
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog

from crewlet.kit import logcontext

_TESTS = Path(__file__).parent
_BEHAVIOURS = _TESTS.parent / "docs" / "behaviours.md"


# As a node logs: a traceback with every local variable costs seconds on a busy machine.
structlog.configure(
    processors=[
        logcontext.merge,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture
def warnings_only() -> Generator[None]:
    """Log no more than warnings: hours of virtual time would write a lot."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    yield
    structlog.configure(**before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What wants much of the machine is marked so; a mark that claims a behaviour must name one that exists."""
    known = set(re.findall(r"^- ([A-Z]{2}-\d\d) ", _BEHAVIOURS.read_text(encoding="utf-8"), re.MULTILINE))
    for item in items:
        is_process = item.path.is_relative_to(_TESTS / "process")
        if is_process:
            item.add_marker(pytest.mark.process)
        if is_process or item.get_closest_marker("cluster") or item.path.name.startswith("test_lease_faults"):
            item.add_marker(pytest.mark.alone)
        for mark in item.iter_markers("proves"):
            unknown = [behaviour for behaviour in mark.args if behaviour not in known]
            if unknown or not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: proves{mark.args} names no line of docs/behaviours.md")
