"""A store outside of Crewlet that cannot be written by an owner of the past: two columns and one comparison do it.

The epoch of a seat grows with every owner. The store keeps the highest that it has seen of each seat, and refuses a
write that carries a lower one, in the same transaction as the write. A process that was frozen while it held the seat
and thaws after another has taken over is turned away, however late it comes; nothing depends on a clock.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

_TABLES = """
CREATE TABLE IF NOT EXISTS owners (resource TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS entries (work TEXT PRIMARY KEY, resource TEXT NOT NULL, epoch INTEGER NOT NULL,
                                    text TEXT NOT NULL) STRICT;
"""


class StaleEpoch(Exception):
    """A later owner of the seat has written: this one is of the past."""


class Books:
    """The store.

    Args:
        path: the SQLite file; made when it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def enter(self, text: str, *, work: str, resource: str, epoch: int) -> bool:
        """Write an entry for a seat.

        Args:
            work: names the work; an entry of that name is written once, however often it is asked for.
            resource, epoch: out of the term of the turn that writes.

        Returns:
            True when it was written now; False when it was there already.

        Raises:
            StaleEpoch: nothing was written.
        """
        with self._transaction() as store:
            store.execute(
                "INSERT INTO owners VALUES (?, ?) ON CONFLICT DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (resource, epoch),
            )
            (highest,) = store.execute("SELECT epoch FROM owners WHERE resource = ?", (resource,)).fetchone()
            if epoch < highest:
                raise StaleEpoch(f"{resource} is at epoch {highest}; this write carries {epoch}")
            done = store.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", (work, resource, epoch, text))
            return done.rowcount == 1

    def entries(self) -> list[tuple[str, int]]:
        """Each entry's text and the epoch it was written under, in order."""
        with self._transaction() as store:
            return store.execute("SELECT text, epoch FROM entries ORDER BY rowid").fetchall()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30.0, isolation_level=None)) as store:
            store.executescript(_TABLES)
            store.execute("BEGIN IMMEDIATE")
            try:
                yield store
            except BaseException:
                store.execute("ROLLBACK")
                raise
            store.execute("COMMIT")
