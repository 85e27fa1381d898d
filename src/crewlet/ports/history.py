"""What this node did: its own record of turns, for people. It decides nothing, and no other node reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

HEAD_CHARS = 2_000
"""Of a longer text only the beginning is kept."""


class TurnBegan(msgspec.Struct, frozen=True, gc=False):
    """A turn has its slot and starts."""

    turn_id: str
    seat: str
    epoch: int
    runner: str
    work_key: str
    triggers: tuple[str, ...]
    at: datetime


class RoundBegan(msgspec.Struct, frozen=True, gc=False):
    """A round of a turn starts, counted from 1."""

    turn_id: str
    number: int
    at: datetime


class RoundEnded(msgspec.Struct, frozen=True, gc=False):
    """A model answered.

    Attributes:
        model: which one.
        input_tokens, output_tokens: as the provider counts them; 0 when it does not say.
    """

    turn_id: str
    number: int
    model: str
    input_tokens: int
    output_tokens: int
    at: datetime


class CallBegan(msgspec.Struct, frozen=True, gc=False):
    """A tool is called.

    Attributes:
        number: counts the calls of the turn from 1.
        tool, server: what is called; the server is "" for a tool of Crewlet's own.
        is_effect: it may change something outside.
        key: its idempotency key.
        arguments: JSON, its beginning.
    """

    turn_id: str
    number: int
    tool: str
    server: str
    is_effect: bool
    key: str
    arguments: str
    at: datetime


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """A tool answered, or was given up; `answer` is its beginning."""

    turn_id: str
    number: int
    is_error: bool
    answer: str
    at: datetime


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """A line of progress for people."""

    turn_id: str
    text: str
    at: datetime


class TurnEnded(msgspec.Struct, frozen=True, gc=False):
    """A turn is over.

    Attributes:
        outcome: the outcome word, or `broke`, `fenced`, `panicked`.
    """

    turn_id: str
    outcome: str
    detail: str
    at: datetime


class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """What became of a delivery that ran no turn, or of its turn's mail.

    Attributes:
        answer: `ack`, `nak`, `defer`, `bury`.
        reason: why, in one line.
    """

    seat: str
    triggers: tuple[str, ...]
    answer: str
    reason: str
    at: datetime


Happening = TurnBegan | RoundBegan | RoundEnded | CallBegan | CallEnded | Progressed | TurnEnded | Dispatched


@dataclass(frozen=True, slots=True)
class RoundLine:
    """One round as it is remembered; what has not come yet is None."""

    number: int
    began_at: datetime
    ended_at: datetime | None
    model: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class CallLine:
    """One call as it is remembered. With no `ended_at` it runs, or its process died in it."""

    number: int
    round: int
    tool: str
    server: str
    is_effect: bool
    key: str
    arguments: str
    began_at: datetime
    ended_at: datetime | None
    is_error: bool
    answer: str


@dataclass(frozen=True, slots=True)
class TurnLine:
    """One turn as it is remembered.

    Attributes:
        sequence: grows with each turn that began here; where to go on reading.
        outcome: "" while it runs.
        ended_at: None while it runs, and for one whose process died in it.
        round, tool: where it is, or was last; 0 and "" before the first.
        progressed_at: the last sign of progress of any kind.
        progress: its last line for people.
    """

    sequence: int
    turn_id: str
    seat: str
    epoch: int
    runner: str
    work_key: str
    triggers: tuple[str, ...]
    began_at: datetime
    ended_at: datetime | None
    outcome: str
    detail: str
    round: int
    tool: str
    progressed_at: datetime
    progress: str


@dataclass(frozen=True, slots=True)
class TurnPage:
    """One turn with all that is remembered of it."""

    turn: TurnLine
    rounds: tuple[RoundLine, ...]
    calls: tuple[CallLine, ...]


@dataclass(frozen=True, slots=True)
class DispatchLine:
    """One dispatch as it is remembered."""

    seat: str
    triggers: tuple[str, ...]
    answer: str
    reason: str
    at: datetime


class History(Protocol):
    """The node's own record."""

    def note(self, happening: Happening) -> None:
        """Keep this, soon. Never blocks and never raises: what cannot be kept is counted and told once."""
        ...

    async def keep(self, happening: Happening) -> None:
        """Keep this, after all that was noted before, and return when it is on the disk.

        Raises:
            Unavailable: it is not.
        """
        ...

    async def turns(self, seat: str, *, after: int = 0, limit: int = 50) -> Sequence[TurnLine]:
        """The newest turns of a seat, oldest first.

        Args:
            after: only turns with a larger `sequence`, or that were running at that point; 0 for all.
            limit: 1 to 1,000.

        Raises:
            Unavailable: the store cannot be read.
        """
        ...

    async def turn(self, turn_id: str) -> TurnPage | None:
        """One turn, or None when this node does not remember it.

        Args:
            turn_id: a prefix that only one turn has will do.

        Raises:
            Unavailable: the store cannot be read.
        """
        ...

    async def dispatches(self, seat: str, *, limit: int = 50) -> Sequence[DispatchLine]:
        """What became of the newest deliveries of a seat that ran no turn, oldest first.

        Raises:
            Unavailable: the store cannot be read.
        """
        ...

    async def prune(self, before: datetime, *, at_most: int = 500) -> int:
        """Forget turns, with their rounds and calls, and dispatches that are older than that.

        Returns:
            How many rows it forgot, of every kind; call it again while that is `at_most`.

        Raises:
            Unavailable: the store cannot be written.
        """
        ...


class NoHistory:
    """For a process that remembers nothing."""

    def note(self, happening: Happening) -> None:
        """Forget it."""

    async def keep(self, happening: Happening) -> None:
        """Forget it."""

    async def turns(self, seat: str, *, after: int = 0, limit: int = 50) -> Sequence[TurnLine]:
        """None."""
        return ()

    async def turn(self, turn_id: str) -> TurnPage | None:
        """None."""
        return None

    async def dispatches(self, seat: str, *, limit: int = 50) -> Sequence[DispatchLine]:
        """None."""
        return ()

    async def prune(self, before: datetime, *, at_most: int = 500) -> int:
        """There is nothing to forget."""
        return 0
