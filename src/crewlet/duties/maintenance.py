"""The duty `maintenance`: retires the mailboxes of removed seats, closes questions that nobody answers, and forgets
what the store keeps of removed keys."""

from collections.abc import Sequence

import structlog

from crewlet.duties.answering import ChannelSweep
from crewlet.duties.frame import Duty, Turned
from crewlet.duties.retiring import MailboxSweep
from crewlet.ports.cells import Cells
from crewlet.ports.errors import Unavailable

EVERY_S = 15 * 60.0
MARKERS_KEPT_S = 3 * 3600.0
"""As long as the longest lease of a duty: nothing that might still be settled is that old."""

_log = structlog.get_logger()


class Maintenance:
    """One tick after the other.

    Args:
        sweep: of the mailboxes.
        channels: of the questions between seats; None where there are none.
        ageless: the shared buckets that keep their records for ever, markers of removed ones included.
        every_s: from one tick to the next, 10 s or more.
    """

    def __init__(
        self,
        sweep: MailboxSweep,
        ageless: Sequence[Cells],
        channels: ChannelSweep | None = None,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._every_s = every_s
        self._sweep = sweep
        self._channels = channels
        self._ageless = ageless

    def duty(self) -> Duty:
        purpose = "retires the mailboxes of removed seats; closes idle questions; purges the markers of removed records"
        return Duty("maintenance", purpose, self._every_s, 3 * self._every_s, self.tick)

    async def tick(self, turned: Turned) -> str:
        """Do all of it; what fails does not keep the rest.

        Raises:
            Unavailable: some of it could not be done.
        """
        done: list[str] = []
        failed: list[str] = []
        try:
            report = await self._sweep.sweep(turned)
            done.append(report.line())
            failed += report.errors
        except Unavailable as error:
            failed.append(f"mailboxes: {error}")
        if self._channels is not None:
            try:
                done.append(await self._channels.sweep(turned))
            except Unavailable as error:
                failed.append(f"channels: {error}")
        for cells in self._ageless:
            turned()
            try:
                if purged := await cells.purge_markers(MARKERS_KEPT_S, turned):
                    _log.info("removal_markers_purged", bucket=cells.name, markers=purged)
                    done.append(f"{purged} markers purged from {cells.name}")
            except Unavailable as error:
                failed.append(f"markers of {cells.name}: {error}")
        did = ", ".join(filter(None, done))
        if failed:
            raise Unavailable("; ".join([*failed, *([f"done: {did}"] if did else [])]))
        return did
