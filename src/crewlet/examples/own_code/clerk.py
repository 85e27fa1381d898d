"""A seat that writes to a store outside, under its term."""

import os
from pathlib import Path

from books import Books, StaleEpoch  # from this folder, beside the seat's own module

from crewlet.agent import Outcome, Turn


async def run(turn: Turn) -> Outcome:
    books = Books(Path(os.environ["BOOKS"]))
    written = 0
    for mail in turn.mail:
        # Cheap, and enough to stop early. What makes the write safe is the epoch that goes with it.
        await turn.term.check()
        try:
            written += books.enter(mail.body, work=mail.id, resource=turn.term.resource, epoch=turn.term.epoch)
        except StaleEpoch as stale:
            return Outcome("blocked", str(stale))
    return Outcome("delivered", f"entries written: {written}")
