"""Channels over a bucket that tells what it was asked."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.ports.cells import Cells, Entry, WriteResult
from crewlet.testing.virtual import VirtualClock

TTL_S = 30.0


class Watched:
    """A bucket that counts what it is asked, and may be told what to do first."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.asked: list[str] = []
        self.biggest = 0
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.blind_reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def _note(self, request: str) -> None:
        self.asked.append(request)
        if self.before is not None:
            await self.before(request)

    async def read(self, key: str) -> Entry | None:
        await self._note("read")
        if self.blind_reads:
            self.blind_reads -= 1
            return None
        return await self._cells.read(key)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        await self._note("create")
        self.biggest = max(self.biggest, len(value))
        return await self._cells.create(key, value, **how)

    async def replace(self, key: str, value: bytes, **how: Any) -> WriteResult:
        await self._note("replace")
        self.biggest = max(self.biggest, len(value))
        return await self._cells.replace(key, value, **how)


async def watched(clock: VirtualClock) -> tuple[Watched, Channels]:
    cells = Watched(await LocalCells(clock).open(CHANNELS_BUCKET))
    return cells, Channels(cast("Cells", cells))


def turned() -> None: ...
