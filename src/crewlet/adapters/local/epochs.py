"""The file in which one bucket outlives its process: an append-only journal that is compacted when it is opened.

Each line is a checksum and a JSON record. A line is on the disk before its write is answered. A last line that is torn
was never answered and is dropped; a bad line anywhere else means that answered writes are missing, and is refused: a
fencing token that went backwards would be worse than a node that does not start.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from crewlet.kit.refusal import ConfigRefused

_HEADER = "crewlet-epochs 1"
SPARE_LINES = 1_000


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """The newest write of one key; `value` is None where that write removed it."""

    key: str
    value: bytes | None
    revision: int
    written_at: datetime


class EpochsFile:
    """One journal. Its methods block on the disk and are called one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, str] = {}
        self._last_revision = 0
        self._appended = 0
        self._needs_rewrite = True

    def load(self) -> Mapping[str, JournalRecord]:
        """The newest record of each key, removed ones included.

        Raises:
            ConfigRefused: the file cannot be read or written, is damaged, or is of another kind.
        """
        records: dict[str, JournalRecord] = {}
        for line, record in self._read():
            records[record.key] = record
            self._lines[record.key] = line
            self._last_revision = max(self._last_revision, record.revision)
        try:
            self._rewrite()
        except OSError as error:
            raise self._refusal(f"the file cannot be written ({error.strerror})") from error
        return records

    def append(self, record: JournalRecord) -> None:
        """Put one record on the disk.

        Raises:
            OSError: it may or may not be there; the next call writes the whole file anew, without it.
        """
        line = _encode(record)
        if self._needs_rewrite or self._appended > SPARE_LINES + 4 * len(self._lines):
            self._rewrite(line)
        else:
            self._needs_rewrite = True
            with self._path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            self._needs_rewrite = False
            self._appended += 1
        self._lines[record.key] = line

    def _read(self) -> Iterable[tuple[str, JournalRecord]]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._refusal(f"the file cannot be read ({error.strerror})") from error
        lines = raw.decode("utf-8", "replace").split("\n")
        if lines[0] != _HEADER:
            raise self._refusal("this is not a file of lease epochs")
        last = len(lines) - 1
        for index, line in enumerate(lines[1:], start=1):
            record = _decode(line)
            # Only the piece after the last newline can be torn: lines are flushed one at a time.
            if record is None and index == last:
                return
            if record is None:
                raise self._refusal(f"line {index + 1} is damaged, so the epochs in it cannot be trusted")
            yield line, record

    def _rewrite(self, *more: str) -> None:
        """Replace the file whole, and have its folder entry on the disk too."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        self._needs_rewrite = True
        with fresh.open("wb") as file:
            file.write("\n".join([_HEADER, *self._lines.values(), *more, ""]).encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._appended = 0
        self._needs_rewrite = False

    def _refusal(self, problem: str) -> ConfigRefused:
        return ConfigRefused(
            problem,
            where=str(self._path),
            remedy="restore it from a copy, or point node.data_dir at another folder if no seat of this company runs",
        )


def _encode(record: JournalRecord) -> str:
    value = None if record.value is None else base64.b64encode(record.value).decode()
    body = json.dumps(
        {"k": record.key, "v": value, "r": record.revision, "w": record.written_at.isoformat()}, separators=(",", ":")
    )
    return f"{zlib.crc32(body.encode()):08x} {body}"


def _decode(line: str) -> JournalRecord | None:
    checksum, _, body = line.partition(" ")
    if checksum != f"{zlib.crc32(body.encode()):08x}":
        return None
    try:
        raw = json.loads(body)
        value = None if raw["v"] is None else base64.b64decode(raw["v"])
        return JournalRecord(raw["k"], value, raw["r"], datetime.fromisoformat(raw["w"]))
    except (ValueError, KeyError, TypeError):
        return None
