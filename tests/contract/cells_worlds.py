"""The worlds on which the cells' contracts run."""

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import CellStore
from crewlet.testing.faulty_link import FaultyLink

_names = itertools.count(1)


class ManualClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self._elapsed_s = 1000.0

    def move(self, seconds: float) -> None:
        self._elapsed_s += seconds

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self._elapsed_s)

    def elapsed(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds
        await asyncio.sleep(0)


class LocalWorld:
    """Cells in this process. With a file, the bucket kept in it is the one under test."""

    def __init__(self, epochs_file: Path | None = None) -> None:
        self.clock = ManualClock()
        self._store = LocalCells(self.clock, epochs_file=epochs_file)
        self._keeps_file = epochs_file is not None

    async def store(self) -> CellStore:
        return self._store

    def name(self, base: str) -> str:
        return "crewlet_epochs" if self._keeps_file else base

    async def pass_time(self, seconds: float) -> None:
        self.clock.move(seconds)


class NatsWorld:
    """Cells of a real broker. It restarts on `thread`, which must outlive it: a broker dies with its starter."""

    def __init__(
        self,
        urls: tuple[str, ...],
        *,
        stack: AsyncExitStack,
        replicas: int = 1,
        restart: Callable[[], None] = lambda: None,
        thread: Executor | None = None,
    ) -> None:
        self.urls = urls
        self._thread = thread
        self._replicas = replicas
        self._restart = restart
        self._stack = stack

    async def connect(self, *urls: str) -> Connection:
        connection = await Connection.open(
            BrokerAddress(urls=urls or self.urls, name="node-test:1"),
            clock=SystemClock(),
            startup_timeout_s=30,
            replicas=self._replicas,
        )
        self._stack.push_async_callback(connection.close)
        return connection

    async def store(self) -> CellStore:
        return NatsCells(await self.connect(), entropy=SystemEntropy())

    async def store_over_link(self) -> tuple[CellStore, FaultyLink]:
        link = await self._stack.enter_async_context(FaultyLink(self.urls[0]))
        return NatsCells(await self.connect(link.url), entropy=SystemEntropy()), link

    def name(self, base: str) -> str:
        return f"{base}_{next(_names)}"

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def restart(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._restart)
