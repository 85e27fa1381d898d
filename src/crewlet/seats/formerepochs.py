"""Epochs that a node counted by itself before its coordination was on a stream: an epoch never falls, also then."""

import structlog

from crewlet.ports.cells import Cells, landed
from crewlet.ports.errors import Unavailable
from crewlet.seats.records import EpochRecord, decode_epoch, encode

_ROUNDS = 64

_log = structlog.get_logger()


async def take_over(former: Cells, epochs: Cells) -> None:
    """Raise each counter to what it was before, where it is lower. Safe to repeat, and beside other nodes.

    Raises:
        Unavailable: nobody answered, or a counter cannot be read.
    """
    raised = [entry.key for entry in await former.list() if await _raise(epochs, entry.key, decode_epoch(entry).epoch)]
    if raised:
        _log.warning("former_epochs_taken_over", keys=raised)


async def _raise(epochs: Cells, key: str, least: int) -> bool:
    for _ in range(_ROUNDS):
        entry = await epochs.read(key)
        now = decode_epoch(entry)
        if now.epoch >= least:
            return False
        value = encode(EpochRecord(epoch=least, preferred=now.preferred))
        writing = epochs.create(key, value) if entry is None else epochs.replace(key, value, expect=entry.revision)
        if landed(await writing, f"{key}: the counter's write is undecided"):
            return True
    raise Unavailable(f"{key}: the counter was overtaken {_ROUNDS} times")
