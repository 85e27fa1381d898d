"""One call of a seat's dispatch, and what has been asked of it meanwhile."""

import asyncio

import msgspec

from crewlet.ports.errors import Fenced
from crewlet.ports.mail import Outcome
from crewlet.turns.turn import Fence


class Run(msgspec.Struct, eq=False):
    """The one call in progress.

    Attributes:
        stop_reason: why this node ends it; its mail goes back.
        stopped: what a person said who ended its turn; its mail is finished with.
        is_cut_short: the seat's own call is being cancelled, and ends when the turn is seen to end.
        is_begun: one that is to end before this is not run at all.
        is_well: the turn came to a result.
        task: runs the turn, and then finds out what becomes of its mail.
        ended: the turn is over, whatever is still to be recorded of it.
    """

    fence: Fence
    stop_reason: str | None = None
    stopped: str | None = None
    is_cut_short: bool = False
    is_begun: bool = False
    is_well: bool = False
    task: "asyncio.Task[Outcome] | None" = None
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def is_ending(self) -> bool:
        return self.is_cut_short or self.stop_reason is not None or self.stopped is not None

    def end(self) -> None:
        """End the turn, if it has begun and not ended. Finding out what becomes of its mail goes on."""
        if self.task is not None and self.is_begun and not self.ended.is_set():
            self.task.cancel()

    @property
    def is_closed(self) -> bool:
        try:
            self.fence.check()
        except Fenced:
            return True
        return False
