"""What a seat is doing and why it does nothing, as the node that holds it knows: one question to that node alone."""

from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.ports.signals import Forget, Signals

QUESTION = "seat_work"
ANSWER_WITHIN_S = 1.0

_LONGEST = 300

_log = structlog.get_logger()


class SeatWork(msgspec.Struct, frozen=True):
    """What the holder of a seat says of it.

    Attributes:
        held: the names of the holds on its inbox, or why it is not read; "" where it is.
        trouble: why its agent is not ready, or its last turn broke; "" for neither.
        turn_id: the turn that runs; "" for none.
        turn_began_at: when that began, by the holder's clock.
        waiting: what that waits for outside, as in "waiting for its provider"; "" for nothing.
        node: who says so.
    """

    held: str = ""
    trouble: str = ""
    turn_id: str = ""
    turn_began_at: datetime | None = None
    waiting: str = ""
    node: str = ""


class SeatWorkDesk:
    """Asks the holder of a seat, and answers for the seats that are held here.

    Args:
        mine: what is known of a seat that is held here; None for another.
    """

    def __init__(self, signals: Signals, node_id: str, mine: Callable[[str], SeatWork | None]) -> None:
        self._signals = signals
        self._node_id = node_id
        self._mine = mine

    async def serve(self) -> Forget:
        """Answer other nodes. Who does not hold the seat says nothing."""

        async def answer(data: bytes) -> bytes | None:
            found = self._own(data.decode(errors="replace"))
            return msgspec.json.encode(found) if found is not None else None

        return await self._signals.serve(QUESTION, answer)

    async def of(self, handle: str, node: str) -> SeatWork | None:
        """What the node that holds a seat says of it; None where it says nothing in time."""
        if node == self._node_id:
            return self._own(handle)
        for data in await self._signals.ask(QUESTION, handle.encode(), timeout_s=ANSWER_WITHIN_S):
            try:
                heard = decode(data, SeatWork)
            except msgspec.MsgspecError as error:
                _log.warning("seat_work_unreadable", error=str(error), bytes=len(data))
                continue
            if heard.node == node:
                return heard
        return None

    def _own(self, handle: str) -> SeatWork | None:
        found = self._mine(handle)
        if found is None:
            return None
        return msgspec.structs.replace(
            found, node=self._node_id, trouble=found.trouble[:_LONGEST], waiting=found.waiting[:_LONGEST]
        )
