"""Epochs that were counted elsewhere before, by the node itself or on its broker: an epoch never falls, also when a
company's coordination or broker changes, or somebody deletes the counters."""

import math

import structlog

from crewlet.ports.cells import Cells, landed
from crewlet.ports.errors import Unavailable
from crewlet.ports.term import Term
from crewlet.seats.records import EpochRecord, decode_epoch, encode, key_of

MADE_LATER = "crewlet_duties"
"""A bucket that no company makes before that of its epochs."""

_ROUNDS = 64

_log = structlog.get_logger()


async def take_over(former: Cells, epochs: Cells) -> bool:
    """Raise each counter to what it was before, where it is lower. Safe to repeat, and beside other nodes.

    Returns:
        Whether one was lower.

    Raises:
        Unavailable: nobody answered, or a counter cannot be read.
    """
    floor = await forgotten(epochs)
    raised = [
        entry.key
        for entry in await former.list()
        if await _raise(epochs, entry.key, decode_epoch(entry).epoch, floor=floor)
    ]
    if raised:
        _log.warning("former_epochs_taken_over", keys=raised)
    return bool(raised)


async def forgotten(epochs: Cells) -> int:
    """What no counter can have passed that was lost when its bucket was deleted; 0 where none was.

    A bucket that was made anew tells by its age, and no resource is won once a second on end.

    Raises:
        Unavailable: nobody answered.
    """
    made_at = await epochs.made_anew_at(MADE_LATER)
    return 0 if made_at is None else math.floor(made_at.timestamp())


async def note_epoch(own: Cells, term: Term) -> None:
    """Keep the epoch of a tenure that was won, for a day on which these are the former counters. Best effort.

    Nothing that the tenure does waits for it: the store has the counter that counts.
    """
    try:
        await _raise(own, key_of(term.resource), term.epoch)
    except Unavailable as error:
        _log.warning("epoch_not_noted", resource=term.resource, epoch=term.epoch, reason=str(error))


async def _raise(epochs: Cells, key: str, least: int, *, floor: int = 0) -> bool:
    """To `least`, or to `floor` where there is no counter: another node may have had more, nobody more than that."""
    for _ in range(_ROUNDS):
        entry = await epochs.read(key)
        now = decode_epoch(entry)
        least = max(least, floor) if entry is None else least
        if now.epoch >= least:
            return False
        value = encode(EpochRecord(epoch=least, preferred=now.preferred))
        writing = epochs.create(key, value) if entry is None else epochs.replace(key, value, expect=entry.revision)
        if landed(await writing, f"{key}: the counter's write is undecided"):
            return True
    raise Unavailable(f"{key}: the counter was overtaken {_ROUNDS} times")
