"""What ends a turn that goes nowhere: too deep a delegation, too many rounds, the same call over and over. Pure."""

from collections.abc import Sequence
from typing import Literal

from crewlet.mail.envelope import Envelope

MAX_DELEGATION_DEPTH = 3
"""How often work may be passed on from seat to seat. Mail of a person or program has depth 0."""

DEFAULT_MAX_ROUNDS = 24

Breach = Literal["depth_cap", "max_iter", "stall"]


class GuardBreached(Exception):
    """A guard ended the turn, which has failed. The seat goes on with its next mail.

    Attributes:
        kind: which guard.
        detail: what it saw, in one line.
    """

    def __init__(self, kind: Breach, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Breach = kind
        self.detail = detail


def check_depth(mail: Sequence[Envelope]) -> None:
    """Hold the mail of a turn against the depth of delegation.

    Raises:
        GuardBreached: it was passed on too often.
    """
    depth = max((event.delegation_depth for event in mail), default=0)
    if depth > MAX_DELEGATION_DEPTH:
        raise GuardBreached("depth_cap", f"this work was passed on {depth} times, {MAX_DELEGATION_DEPTH} are allowed")


class Rounds:
    """Counts the rounds of one run."""

    def __init__(self, limit: int = DEFAULT_MAX_ROUNDS) -> None:
        self._limit = limit
        self.done = 0

    def begin(self) -> int:
        """Begin the next round, and say which it is, from 1.

        Raises:
            GuardBreached: there have been as many as there may be.
        """
        if self.done >= self._limit:
            raise GuardBreached("max_iter", f"no outcome after {self._limit} rounds")
        self.done += 1
        return self.done


class Stall:
    """Notices the same call with the same arguments and the same result, twice running."""

    def __init__(self) -> None:
        self._last: tuple[str, bytes, str] | None = None

    def note(self, tool: str, arguments: bytes, result: str) -> None:
        """A call came back.

        Args:
            arguments: as `effects.canonical` makes them.

        Raises:
            GuardBreached: the call before it was the same in all.
        """
        this = (tool, arguments, result)
        if this == self._last:
            raise GuardBreached("stall", f"{tool} was called twice running with the same arguments and result")
        self._last = this
