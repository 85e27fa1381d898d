"""Epochs that were counted elsewhere before, by the node itself or on its broker: an epoch never falls, also when a
company's coordination or broker changes."""

import structlog

from crewlet.ports.cells import Cells, landed
from crewlet.ports.errors import Unavailable
from crewlet.ports.term import Term
from crewlet.seats.records import EpochRecord, decode_epoch, encode, key_of

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


async def note_epoch(own: Cells, term: Term) -> None:
    """Keep the epoch of a tenure that was won, for a day on which these are the former counters. Best effort.

    Nothing that the tenure does waits for it: the store has the counter that counts.
    """
    try:
        await _raise(own, key_of(term.resource), term.epoch)
    except Unavailable as error:
        _log.warning("epoch_not_noted", resource=term.resource, epoch=term.epoch, reason=str(error))


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
