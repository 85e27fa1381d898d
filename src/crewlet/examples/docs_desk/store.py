"""The desk's shared folder: findings that wait for their pair, and reports. All nodes see the same one.

Every write names the tenure under which it is made. The folder remembers the highest epoch it has seen of each
resource and refuses a lower one, so a program that slept through the end of its tenure cannot overwrite what its
successor wrote. Files appear whole or not at all.
"""

import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from desk import Term, TryAgain
from papers import KINDS, Findings

LOCK_WAIT_S = 5.0


class StaleTerm(TryAgain):
    """A later tenure of the same resource has written here: this one is over."""


class Store:
    """One folder, written under one term.

    Layout: `fences/{resource}` with the highest epoch seen, `findings/{key}/{kind}.json`, `reports/{path}`.
    """

    def __init__(self, root: Path, term: Term) -> None:
        self._root = root
        self._term = term

    def keep(self, findings: Findings) -> dict[str, Findings]:
        """Keep findings, and return all that is kept for the same text of the same document, by kind.

        Raises:
            StaleTerm: the tenure is over; nothing was written.
            TryAgain: the store is busy.
        """
        folder = self._root / "findings" / findings.key
        with self._fenced():
            _write(folder / f"{findings.kind}.json", findings.body())
            kept = {kind: folder / f"{kind}.json" for kind in KINDS}
            return {
                kind: Findings.parse(json.loads(file.read_text("utf-8")))
                for kind, file in kept.items()
                if file.exists()
            }

    def publish(self, path: str, report: str) -> Path:
        """Write the report on a document and return where it is.

        Raises:
            StaleTerm: the tenure is over; nothing was written.
            TryAgain: the store is busy.
        """
        file = self._root / "reports" / path
        with self._fenced():
            _write(file, report)
        return file

    @contextmanager
    def _fenced(self) -> Generator[None]:
        """Hold the resource's lock with the term proven not to be stale. The check and the write are one step."""
        fence = self._root / "fences" / self._term.resource.replace(":", ".").replace("/", ".")
        fence.parent.mkdir(parents=True, exist_ok=True)
        with fence.with_name(f"{fence.name}.lock").open("w") as lock:
            _lock(lock.fileno())
            highest = int(fence.read_text("ascii")) if fence.exists() else 0
            if self._term.epoch < highest:
                raise StaleTerm(f"{self._term.resource} is at epoch {highest}, this turn has {self._term.epoch}")
            if self._term.epoch > highest:
                _write(fence, str(self._term.epoch))
            yield


def _lock(file: int) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TryAgain("the store is locked by another program of this seat") from None
            time.sleep(0.02)
        else:
            return


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with part.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(file)
