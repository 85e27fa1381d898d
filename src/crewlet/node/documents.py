"""Nodes with different documents: while a change of the company rolls through the fleet, and where it got stuck.

A seat that one document names and another does not may be held by nobody: who does not know it takes no share of it,
and the shares of those that do leave room for them. That is right for a minute and wrong for an hour, so it is told.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from crewlet.kit.supervise import Tasks
from crewlet.node.roster import FleetRoster
from crewlet.node.status import FleetSnapshot
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import Lease

TELL_AFTER_S = 60.0
"""How long documents may differ before the log says so."""
TELL_EVERY_S = 300.0

_log = structlog.get_logger()


class DocumentWatch:
    """Says in the log that documents differ, and which seats nobody holds meanwhile.

    Args:
        read: the fleet; asked only while they do.

    Attributes:
        others: the live nodes with another document, as they were last read.
    """

    def __init__(
        self, roster: FleetRoster, read: Callable[[], Awaitable[FleetSnapshot]], clock: Clock, tasks: Tasks
    ) -> None:
        self._roster = roster
        self._read = read
        self._clock = clock
        self._tasks = tasks
        self._tell_at: float | None = None
        self.others: tuple[str, ...] = ()

    def note(self, presences: Sequence[Lease]) -> None:
        """The live nodes as they were just read."""
        self.others = self._roster.others(presences)
        if not self.others:
            self._tell_at = None
            return
        now = self._clock.elapsed()
        if self._tell_at is None:
            self._tell_at = now + TELL_AFTER_S
        elif now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            self._tasks.start(self._tell(), "documents that differ")

    async def _tell(self) -> None:
        try:
            fleet = await self._read()
        except Unavailable:
            return  # said again in its time
        if fleet.other_documents:
            _log.warning("company_documents_differ", nodes=list(fleet.other_documents), unheld=list(fleet.disputed))
