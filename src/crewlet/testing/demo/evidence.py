"""Gathering the evidence: the seats' own files, and what the store says through a member that is alive."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail.ledger import LEDGER_BUCKET
from crewlet.mail.topics import inbox
from crewlet.testing.demo.judge import Completion
from crewlet.testing.demo.trail import BadLine, Line, parse_line


@dataclass(slots=True)
class Trails:
    """The evidence files of a folder, read as they grow.

    `torn` counts lines that no program writes; `broken` says where they are. A last line without its end is left for
    the next reading.
    """

    folder: Path
    lines: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])
    broken: list[str] = field(default_factory=list[str])
    _offsets: dict[Path, int] = field(default_factory=dict[Path, int])

    def read(self) -> Mapping[str, Sequence[Line]]:
        """All lines so far, by seat, in the order of the files."""
        for file in sorted(self.folder.glob("*.jsonl")):
            with file.open("rb") as handle:
                handle.seek(self._offsets.get(file, 0))
                data = handle.read()
            whole, _, _ = data.rpartition(b"\n")
            if not whole:
                continue
            self._offsets[file] = self._offsets.get(file, 0) + len(whole) + 1
            found = self.lines.setdefault(file.stem, [])
            for text in whole.split(b"\n"):
                try:
                    found.append(parse_line(text))
                except BadLine as error:
                    self.broken.append(f"the evidence of seat {file.stem} has a line that no program writes: {error}")
        return self.lines


class StoreReader:
    """Reads the ledger and the streams as a client of its own, beside the nodes."""

    def __init__(self, connection: Connection, cells: NatsCells, mail: NatsMail) -> None:
        self._connection = connection
        self._cells = cells
        self._mail = mail

    @classmethod
    async def open(cls, urls: Sequence[str], *, lease_ttl_s: float, timeout_s: float) -> Self:
        """Connect to whichever member answers.

        Raises:
            Unavailable: none did in time.
        """
        clock, entropy = SystemClock(counts_suspend=True), SystemEntropy()
        address = BrokerAddress(urls=tuple(urls), name="crewlet-demo")
        connection = await Connection.open(address, clock=clock, startup_timeout_s=timeout_s, replicas=3)
        mail = NatsMail(connection, clock=clock, entropy=entropy, ack_window_s=lease_ttl_s, replicas=3)
        await mail.start()
        return cls(connection, NatsCells(connection, entropy=entropy), mail)

    async def completions(self) -> Sequence[Completion]:
        """The whole ledger, with the store's own times.

        Raises:
            Unavailable: nobody answered.
        """
        bucket = await self._cells.open(LEDGER_BUCKET)
        return [_completion(entry.key, entry.value, entry.written_at.timestamp()) for entry in await bucket.list()]

    async def waiting(self, handles: Sequence[str]) -> Mapping[str, int]:
        """By seat, the messages that its inbox still keeps, delivered or not.

        Raises:
            Unavailable: nobody answered.
        """
        backlogs = await asyncio.gather(*(self._mail.waiting(inbox(handle)) for handle in handles))
        return {
            handle: backlog.waiting + backlog.in_hand if backlog else 0
            for handle, backlog in zip(handles, backlogs, strict=True)
        }

    async def close(self) -> None:
        await self._mail.stop()
        await self._connection.close()


class _Record(msgspec.Struct, frozen=True):
    outcome: str


def _completion(key: str, value: bytes, written_at: float) -> Completion:
    """The record of a ledger key `{handle}.{id}`, in which `=hh` stands for a byte that a key cannot hold."""
    handle, _, spelled = key.partition(".")
    head, *coded = spelled.split("=")
    raw = head.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in coded)
    return Completion(handle, raw.decode(), written_at, msgspec.json.decode(value, type=_Record).outcome)
