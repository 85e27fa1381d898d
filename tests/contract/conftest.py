"""What contract tests share."""

from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest
from cells_worlds import NatsWorld

from crewlet.testing.brokers import Server, one_server

pytest.register_assert_rewrite("crewlet.testing.contracts")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A server of the module's own."""
    with one_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def thread() -> Generator[Executor]:
    """Where a broker is restarted: it dies with the thread that started it."""
    with ThreadPoolExecutor(1) as lasting:
        yield lasting


@pytest.fixture
async def world(server: Server, thread: Executor) -> AsyncGenerator[NatsWorld]:
    """The module's server, by clients that end with the test."""
    async with AsyncExitStack() as stack:
        yield NatsWorld(server.urls, restart=server.restart, thread=thread, stack=stack)
