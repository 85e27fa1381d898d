"""A `python` seat that leaves evidence of its worker and of each turn. A turn lasts as long as `{seat}.hold` is there.

`{seat}.hot` has the turn do nothing but ask for its term, so that a worker that is stopped nearly always waits for it.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from seatwitness import Witness

from crewlet.agent import Fenced, SyncTurn, Turn

FOLDER, SEAT = os.environ["EVIDENCE"], os.environ["CREWLET_SEAT"]
HOLD, HOT = Path(FOLDER, f"{SEAT}.hold"), Path(FOLDER, f"{SEAT}.hot")
WITNESS = Witness("worker", FOLDER, SEAT)
WITNESS.up(epoch=int(os.environ["CREWLET_TERM_EPOCH"]))


def _note(turn: SyncTurn | Turn, phase: str, **more: Any) -> None:
    WITNESS.note(phase, epoch=turn.term.epoch, owner=turn.term.owner, order=turn.triggers[0], **more)


def sync(turn: SyncTurn) -> str:
    _note(turn, "begin")
    try:
        while HOLD.exists():
            turn.term.check()
            if not HOT.exists():
                _note(turn, "tick")
                time.sleep(0.05)
    except Fenced as fenced:
        _note(turn, "fenced", says=str(fenced))
        raise
    _note(turn, "end")
    return "done"


async def asynchronous(turn: Turn) -> str:
    _note(turn, "begin")
    try:
        while HOLD.exists():
            await turn.term.check()
            if not HOT.exists():
                _note(turn, "tick")
                await asyncio.sleep(0.05)
    except Fenced as fenced:
        _note(turn, "fenced", says=str(fenced))
        raise
    _note(turn, "end")
    return "done"
