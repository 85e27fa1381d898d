"""What the judge knows things as: tenures as the store has them, turns as their runners live them."""

from dataclasses import dataclass, field

from crewlet.seats.records import LeaseRecord
from crewlet.testing.sim.loop import Process


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: `P1` to `P10`."""

    promise: str
    text: str
    at: float


@dataclass(slots=True)
class Tenure:
    """A lease record as the store has it. `ends_at` is when it lapses; what was released has ended before all time."""

    record: LeaseRecord
    at: float
    began_at: float
    ends_at: float
    is_held: bool

    def is_live(self, now: float) -> bool:
        return now < self.ends_at


@dataclass(slots=True, eq=False)
class RunningTurn:
    """A turn as its runner lives it."""

    process: Process
    handle: str
    owner: str
    epoch: int
    turn_id: str
    work: str
    triggers: tuple[str, ...]
    is_exempt: bool = False
    ended: str = ""
    calls: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    @property
    def can_act(self) -> bool:
        return not self.ended and self.process.is_running


def trigger_of(key: str) -> tuple[str, str]:
    """The seat and the message that a key of the ledger stands for."""
    handle, _, trigger = key.partition(".")
    return handle, trigger


def key_of_trigger(handle: str, trigger: str) -> str:
    return f"{handle}.{trigger}"
