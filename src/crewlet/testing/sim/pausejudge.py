"""Pauses, judged: a paused seat begins no turn on a node that had the pause, nor under a tenure that is younger."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from crewlet.mail.pauses import PAUSES_BUCKET, Pause
from crewlet.testing.sim.loop import Process
from crewlet.testing.virtual import EPOCH

PAUSES = PAUSES_BUCKET.name

_THAW_S = 0.1
_SLACK_S = 0.001
_STOP_S = 0.05


class _Record(msgspec.Struct):
    seats: dict[str, Pause] = {}


@dataclass(frozen=True, slots=True)
class _InForce:
    pause: Pause
    since: float
    revision: int

    def is_over(self, now: float) -> bool:
        return self.pause.is_over(EPOCH + timedelta(seconds=now))


class PauseJudge:
    """Knows the pauses as the store has them, and when each process heard of each.

    Args:
        fail: called with a promise and how it was broken.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._in_force: dict[str, _InForce] = {}
        self._lifted_at: dict[str, float] = {}
        self._heard_at: dict[tuple[str, str], float] = {}

    def wrote(self, value: bytes | None, revision: int) -> None:
        """The record of pauses has changed."""
        pauses = msgspec.json.decode(value, type=_Record).seats if value is not None else {}
        before, now = self._in_force, asyncio.get_running_loop().time()
        self._in_force = {
            handle: standing
            if (standing := before.get(handle)) is not None and standing.pause == pause
            else _InForce(pause, now, revision)
            for handle, pause in pauses.items()
        }
        for handle in before.keys() - pauses.keys():
            self._lifted_at[handle] = now

    def heard(self, process: Process, revision: int) -> None:
        """A node's watch has shown it the record of that revision."""
        for each in self._in_force.values():
            if each.revision <= revision:
                self._heard_at.setdefault((process.name, each.pause.id), asyncio.get_running_loop().time())

    def is_paused(self, handle: str, *, for_s: float) -> bool:
        """Whether a seat is paused, and has been for so long."""
        now, standing = asyncio.get_running_loop().time(), self._in_force.get(handle)
        return standing is not None and not standing.is_over(now) and now - standing.since > for_s

    def was_paused(self, handle: str, *, within_s: float) -> bool:
        """Whether a seat is paused, or was within the time that has just gone by."""
        ago = asyncio.get_running_loop().time() - within_s
        standing, lifted_at = self._in_force.get(handle), self._lifted_at.get(handle)
        return (standing is not None and not standing.is_over(ago)) or (lifted_at is not None and lifted_at >= ago)

    def begins(self, process: Process, handle: str, tenure_began_at: float) -> None:
        """A turn of the seat begins, under a tenure that was won then."""
        now, standing = asyncio.get_running_loop().time(), self._in_force.get(handle)
        if standing is None or standing.is_over(now):
            return
        if tenure_began_at > standing.since:
            ago_s = now - standing.since
            self._fail("P7", f"{process.name} took {handle} and began a turn, paused {ago_s:.3f} s ago")
        elif self._has_heard(process, standing.pause, _SLACK_S):
            self._fail("P7", f"{process.name} began a turn of {handle}, of whose pause it had heard")

    def acts(self, process: Process, handle: str) -> None:
        """A call of a running turn leaves."""
        standing = self._in_force.get(handle)
        if standing is None or not standing.pause.stop_running or standing.is_over(asyncio.get_running_loop().time()):
            return
        if self._has_heard(process, standing.pause, _STOP_S):
            self._fail("P7", f"a turn of {handle} went on at {process.name}, which had heard that it is to stop")

    def _has_heard(self, process: Process, pause: Pause, slack_s: float) -> bool:
        heard_at = self._heard_at.get((process.name, pause.id))
        return heard_at is not None and asyncio.get_running_loop().time() > max(
            heard_at + slack_s, process.thawed_at + _THAW_S
        )
