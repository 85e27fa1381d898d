"""What a turn has done so far: the evidence by which a broken one is judged, and what others may watch."""

from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["started", "progress", "finished", "broke", "fenced", "panicked"]


@dataclass(frozen=True, slots=True)
class TurnNote:
    """Something happened in a turn.

    Attributes:
        handle: the seat.
        turn_id: the run.
        stage: what happened. All but `started` and `progress` end the turn.
        detail: one line for people.
    """

    handle: str
    turn_id: str
    stage: Stage
    detail: str = ""


@dataclass(slots=True)
class TurnRecord:
    """The effects of one run, in this process's own memory.

    An effect is entered before its call leaves, and confirmed when the other side has answered. Only a confirmed one
    proves that the turn reached outside: proof gives a trigger up, so a mere attempt is not enough. (An attempt at mail
    may have landed; its id is derived from the work, so a re-run sends the same mail and not a second one.)
    """

    attempted: list[str] = field(default_factory=list[str])
    confirmed: list[str] = field(default_factory=list[str])

    @property
    def reached_outside(self) -> bool:
        return bool(self.confirmed)

    def attempt(self, effect: str) -> None:
        self.attempted.append(effect)

    def confirm(self, effect: str) -> None:
        self.confirmed.append(effect)
