"""The cells' contract on every implementation."""

from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cells_worlds import LocalWorld, NatsWorld

from crewlet.ports.cells import BucketSpec, Done
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
async def test_a_lone_server_says_in_one_answer_that_none_of_many_keys_is_there(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        cells = await (await world.store()).open(BucketSpec(world.name("none")))
        keys = [f"seat.{number}" for number in range(100)]
        assert await cells.has_none(keys)
        assert isinstance(made := await cells.create(keys[-1], b"1"), Done)
        assert not await cells.has_none(keys)
        assert await cells.has_none(keys[:-1])
        # The rest of the longer answer is nobody's, and harms nobody.
        assert (entry := await cells.read(keys[-1])) is not None and entry.revision == made.revision


@pytest.mark.real
@pytest.mark.cluster
async def test_of_several_servers_none_says_that_keys_are_not_there(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        for replicas in (1, 3):
            world = NatsWorld(cluster.urls, replicas=replicas, stack=stack)
            cells = await (await world.store()).open(BucketSpec(world.name(f"none{replicas}")))
            assert not await cells.has_none(["seat.alice"])


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
