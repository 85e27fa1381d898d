"""What a node shows of turns and of what they spend: frozen snapshots, like those in `status`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from crewlet.ports.history import CallLine, DispatchLine, RoundLine


@dataclass(frozen=True, slots=True)
class TurnSnapshot:
    """One turn, as the node remembers it that ran it.

    Attributes:
        sequence: grows with each turn of the node; where to go on reading.
        state: `cut_off` where it never came to an end and does not run: its process died in it.
        round, tool: where it is, or was last; 0 and "" before the first.
        progress: its last line for people.
        progressed_at: the last sign of progress of any kind.
        quiet_s: how long ago that was; None where it does not run.
        waiting: what it waits for outside; "" for nothing.
        outcome: the outcome word, or `broke`, `fenced`, `parked`, `panicked`; "" without an end.
    """

    sequence: int
    turn_id: str
    seat: str
    state: Literal["running", "ended", "cut_off"]
    epoch: int
    runner: str
    work_key: str
    triggers: tuple[str, ...]
    began_at: datetime
    round: int
    tool: str
    progress: str
    progressed_at: datetime
    waiting: str = ""
    quiet_s: float | None = None
    ended_at: datetime | None = None
    outcome: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TurnDetail:
    """One turn with its rounds and calls."""

    turn: TurnSnapshot
    rounds: tuple[RoundLine, ...]
    calls: tuple[CallLine, ...]


@dataclass(frozen=True, slots=True)
class SeatTail:
    """The newest that this node knows of a seat's turns, oldest first.

    Attributes:
        asked_node: who answers.
        node: who holds the seat; None when nobody does, or nobody says.
        is_here: this node does: what the seat does now is in here.
        dispatches: what became of mail that ran no turn.
    """

    seat: str
    asked_node: str
    node: str | None
    is_here: bool
    turns: tuple[TurnSnapshot, ...]
    dispatches: tuple[DispatchLine, ...]


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """A spender in one window. `cap` None sets no limit; `ends_at` by the store's clock."""

    spent: int
    cap: int | None
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class BudgetSnapshot:
    """Where a spender stands.

    Attributes:
        seat: its handle; None for the company.
        is_set: the caps were set by a person, in place of the document's.
        windows: by `day`, `week`, `month`.
        is_spent: a cap is reached: nothing more may be spent until its window ends, or somebody raises it.
    """

    seat: str | None
    is_set: bool
    is_spent: bool
    windows: Mapping[str, WindowSnapshot]
