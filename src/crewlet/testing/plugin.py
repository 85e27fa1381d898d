"""The pytest plugin: the fixtures `company` and `async_company`, and what happened to the seats of a failed test.

It is loaded wherever Crewlet is installed, so it loads nothing itself until a test asks for a company.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from crewlet.testing import AsyncInMemoryCompany, InMemoryCompany

_INI = "crewlet_company"
_ASYNC = "async_company"
_HELD = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        _INI,
        "the company document that the fixtures `company` and `async_company` run",
        default="company.yaml",
    )


@pytest.fixture
def company_document(request: pytest.FixtureRequest) -> str | Path:
    """The company document of the tests: the file that `crewlet_company` in pytest's configuration names.

    Define a fixture of this name to choose another: it gives a path, or the document's text.
    """
    config = request.config
    return (config.inipath.parent if config.inipath else config.rootpath) / str(config.getini(_INI))


@pytest.fixture
def company_options() -> dict[str, Any]:
    """More arguments for the companies of the tests: `env`, `variables`, `lease_ttl_s`. To be redefined."""
    return {}


@pytest.fixture
def company(
    request: pytest.FixtureRequest, company_document: str | Path, company_options: dict[str, Any]
) -> "Generator[InMemoryCompany]":
    """The company in memory, for tests that are plain functions."""
    from crewlet.testing import InMemoryCompany

    with InMemoryCompany(company_document, **company_options) as made:
        request.node.stash[_HELD] = made
        yield made


@pytest.fixture
def async_company(
    request: pytest.FixtureRequest, company_document: str | Path, company_options: dict[str, Any]
) -> "Generator[AsyncInMemoryCompany]":
    """The company in memory, for `async def` tests, which run on its loop, in virtual time."""
    from crewlet.testing import AsyncInMemoryCompany

    made = AsyncInMemoryCompany(company_document, **company_options)
    request.node.stash[_HELD] = made
    try:
        yield made
    finally:
        made.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> list[pytest.Function] | None:
    """Make an `async def` test with `async_company` a plain one, before any other plugin takes it for its own."""
    if not inspect.iscoroutinefunction(obj) or not collector.funcnamefilter(name):
        return None
    if _ASYNC not in inspect.signature(obj).parameters:
        return None
    items: list[pytest.Function] = list(collector._genfunctions(name, obj))
    for item in items:
        item.obj = _plain(item.obj)
    return items


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    held = item.stash.get(_HELD, None)
    if held is not None and report.when == "call" and report.failed:
        report.sections.append(("Crewlet: the seats", "\n\n".join(held.history(seat) for seat in _told(held))))
    return report


def _told(company: Any) -> list[str]:
    """The seats that something happened to beside being held."""
    return [seat for seat in company.seats if company.mail_to(seat) or company.runs(seat)] or list(company.seats)


def _plain(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        held = cast("AsyncInMemoryCompany", kwargs[_ASYNC])
        held.run(test(*args, **kwargs))

    return run
