"""The cells' contract on every implementation."""

from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cells_worlds import LocalWorld, NatsWorld

from crewlet.testing.brokers import Cluster, Server, three_members
from crewlet.testing.contracts.cells import CellsContract
from crewlet.testing.contracts.cells_network import CellsOverNetworkContract


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    with three_members(tmp_path_factory.mktemp("cells")) as running:
        yield running


class TestLocalCells(CellsContract):
    @pytest.fixture
    def world(self) -> LocalWorld:
        return LocalWorld()


class TestLocalCellsInAFile(CellsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> LocalWorld:
        return LocalWorld(tmp_path / "epochs")


@pytest.mark.real
class TestNatsCells(CellsContract, CellsOverNetworkContract):
    @pytest.fixture
    async def world(self, server: Server, thread: Executor) -> AsyncGenerator[NatsWorld]:
        async with AsyncExitStack() as stack:
            yield NatsWorld(server.urls, replicas=1, restart=server.restart, thread=thread, stack=stack)


@pytest.mark.real
@pytest.mark.cluster
class TestNatsCellsOfThreeMembers(CellsContract, CellsOverNetworkContract):
    @pytest.fixture
    async def world(self, cluster: Cluster, thread: Executor) -> AsyncGenerator[NatsWorld]:
        def roll() -> None:
            for member in range(3):
                cluster.restart(member)

        async with AsyncExitStack() as stack:
            yield NatsWorld(cluster.urls, replicas=3, restart=roll, thread=thread, stack=stack)
