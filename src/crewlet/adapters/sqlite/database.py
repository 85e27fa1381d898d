"""The file: opened, brought up to date, written by one thread and read by another."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import apsw

from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.errors import NotLive, Unavailable

T = TypeVar("T")
Value = int | float | str | bytes | None
Values = Sequence[Value] | Mapping[str, Value]

_BUSY_MS = 5_000
_MIGRATION = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Database:
    """One SQLite file. `open` it, then give it work; each piece runs on a thread of the file's own.

    Args:
        path: the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="sqlite-write")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="sqlite-read")
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None

    async def open(self) -> None:
        """Open the file, making or bringing it up to date.

        Raises:
            ConfigRefused: it cannot be opened, is no database, or is of a newer build.
        """
        self._writer = await self._on(self._writing, self._open_writer)
        self._reader = await self._on(self._reading, self._open_reader)

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run work in one transaction, after all writes that were given before, and return when it is on the disk.

        Raises:
            Unavailable: nothing of it is there.

        Cancellation: the work may be done all the same.
        """

        def in_one() -> T:
            connection = _live(self._writer)
            results: list[T] = []
            with connection:
                results.append(work(connection))
            return results[0]  # committed

        return await self._on(self._writing, _translated(self._path, in_one))

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run work that only reads; writes go on beside it.

        Raises:
            Unavailable: the file cannot be read.
        """
        return await self._on(self._reading, _translated(self._path, lambda: work(_live(self._reader))))

    async def close(self) -> None:
        """Finish the writes that were given, and close. Again: nothing happens."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await self._on(self._reading, reader.close)
        self._reading.shutdown(wait=False)
        if self._writer is not None:
            await self._on(self._writing, self._close_writer)
        self._writing.shutdown(wait=False)

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    async def _on(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except RuntimeError as error:
            raise NotLive(f"the database {self._path} is closed") from error

    def _open_writer(self) -> apsw.Connection:
        try:
            connection = apsw.Connection(str(self._path))
            connection.set_busy_timeout(_BUSY_MS)
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
                run(connection, f"PRAGMA {pragma}")
            self._migrate(connection)
        except apsw.Error as error:
            raise self._refusal(str(error)) from error
        return connection

    def _open_reader(self) -> apsw.Connection:
        try:
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            connection.set_busy_timeout(_BUSY_MS)
        except apsw.Error as error:
            raise self._refusal(str(error)) from error
        return connection

    def _migrate(self, connection: apsw.Connection) -> None:
        """Run what the file has not seen, each with its number in one transaction."""
        scripts = _migrations()
        with connection:
            [(seen,)] = run(connection, "PRAGMA user_version")
            if seen > len(scripts):
                raise self._refusal(f"it was written by a newer build (version {seen}, this one knows {len(scripts)})")
            for number, script in enumerate(scripts[seen:], start=seen + 1):
                run(connection, script)
                run(connection, f"PRAGMA user_version = {number}")

    def _refusal(self, problem: str) -> ConfigRefused:
        return ConfigRefused(
            f"the node's own database cannot be used: {problem}",
            where=str(self._path),
            remedy="move the file away; it holds this node's history and nothing that the company needs",
        )


def run(connection: apsw.Connection, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
    """Run statements, all with the same values, and return the rows of theirs that have any."""
    return list(connection.execute(sql, values))  # pyright: ignore[reportUnknownMemberType] -- numpy's numbers


def _live(connection: apsw.Connection | None) -> apsw.Connection:
    if connection is None:
        raise NotLive("the database is closed")
    return connection


def _translated(path: Path, work: Callable[[], T]) -> Callable[[], T]:
    def run() -> T:
        try:
            return work()
        except apsw.Error as error:
            raise Unavailable(f"{path}: {error}") from error

    return run


def _migrations() -> list[str]:
    """The scripts in the order of their numbers, which begin at 1 and leave none out."""
    folder = resources.files("crewlet.adapters.sqlite") / "migrations"
    found = sorted(item.name for item in folder.iterdir() if _MIGRATION.fullmatch(item.name))
    assert [int(name[:4]) for name in found] == list(range(1, len(found) + 1)), found
    return [(folder / name).read_text(encoding="utf-8") for name in found]
