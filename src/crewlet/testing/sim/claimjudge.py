"""Claims, judged as they leave and as they are won: by whom, of what, and how many at a time.

A node claims what its own document has and its labels match, nothing once it drains, and no more in a stretch than a
pass and the early claims allow.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from crewlet.company.model import Company
from crewlet.seats.allotment import CLAIM_LIMIT_PER_SWEEP, SWEEP_INTERVAL_S
from crewlet.seats.pace import EARLY_CLAIMS
from crewlet.testing.sim.loop import Process

_SWEEP_S = 30.0
"""A claim may go by a document that is so old."""

_CLAIM_S = 10.0
"""A claim that has begun may still have questions to ask before it writes. What it wins is handed straight back."""

_AT_ONCE = 2 * CLAIM_LIMIT_PER_SWEEP + EARLY_CLAIMS
"""In any interval: the end of one pass, the beginning of the next, and the early ones."""


@dataclass(slots=True)
class _Claimer:
    node_id: str
    labels: Mapping[str, str]
    company: Company
    adopted_at: float
    drains_since: float | None = None
    since: dict[str, float] = field(default_factory=dict[str, float])
    won_at: deque[float] = field(default_factory=lambda: deque[float](maxlen=_AT_ONCE + 1))


class ClaimJudge:
    """Knows of each process which document it has, what it is labelled with, and whether it drains.

    Args:
        fail: called with a promise and how it was broken.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._claimers: dict[str, _Claimer] = {}

    def begun(self, owner: str, labels: Mapping[str, str], company: Company) -> None:
        now = asyncio.get_running_loop().time()
        claimer = self._claimers[owner] = _Claimer(owner.partition(":")[0], labels, company, now)
        claimer.since = {seat.handle: now for seat in company.seats}

    def died(self, process: Process) -> None:
        self._claimers.pop(process.name, None)

    def adopted(self, owner: str, company: Company) -> None:
        """A process has put a document in force."""
        claimer = self._claimers.get(owner)
        if claimer is None or claimer.company is company:
            return
        now = asyncio.get_running_loop().time()
        claimer.company, claimer.adopted_at = company, now
        claimer.since = {seat.handle: claimer.since.get(seat.handle, now) for seat in company.seats}

    def drains(self, owner: str) -> None:
        """A process begins to give everything back."""
        if (claimer := self._claimers.get(owner)) is not None:
            claimer.drains_since = asyncio.get_running_loop().time()

    def has_had(self, owner: str, handle: str) -> float | None:
        """Since when a process has a document with the seat in it; None: it has none now."""
        claimer = self._claimers.get(owner)
        return claimer.since.get(handle) if claimer is not None else None

    def document(self, owner: str) -> tuple[Company, float] | None:
        """What a process has in force, and since when."""
        claimer = self._claimers.get(owner)
        return (claimer.company, claimer.adopted_at) if claimer is not None else None

    def leaves(self, process: Process, handle: str) -> None:
        """The first write of a claim is sent."""
        claimer, now = self._claimers.get(process.name), asyncio.get_running_loop().time()
        if claimer is None:
            return
        if claimer.drains_since is not None and now > claimer.drains_since + _CLAIM_S:
            self._fail("P6", f"{process.name} drains, and claims {handle}")
        if now - max(claimer.adopted_at, process.thawed_at) < _SWEEP_S:
            return
        seat = claimer.company.seat(handle)
        if seat is None:
            self._fail("P7", f"{process.name} claims {handle}, which its company has not")
        elif not seat.placement.matches(claimer.node_id, claimer.labels):
            self._fail("P7", f"{process.name} claims {handle}, which is placed at {seat.placement}")

    def won(self, owner: str, *, failed_at: float) -> None:
        """A process has won a seat.

        Args:
            failed_at: when a call of it failed last: what had piled up until then may land together.
        """
        claimer, now = self._claimers.get(owner), asyncio.get_running_loop().time()
        if claimer is None:
            return
        won_at = claimer.won_at
        won_at.append(now)
        if len(won_at) > _AT_ONCE and now - won_at[0] < SWEEP_INTERVAL_S and failed_at < won_at[0] - _SWEEP_S:
            self._fail("P6", f"{owner} won {len(won_at)} seats within {now - won_at[0]:.1f} s")
