"""What tests of the API and of the command line over it share."""

from collections.abc import Iterator

import pytest
from stub_node import Served, served


@pytest.fixture(scope="module")
def one_server() -> Iterator[Served]:
    """A server of the module's own, over a stub of a node."""
    with served() as each:
        yield each


@pytest.fixture
def api(one_server: Served) -> Served:
    """The server of the module, its node as new."""
    one_server.node.reset()
    return one_server
