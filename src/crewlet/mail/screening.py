"""May a delivery that this node was handed be worked here and now? Pure.

The conditions are looked at in one fixed order, so that of several refusals always the same one is named. A refusal
hands the mail back and stops the inbox; what opens it again is the next renewal, and for a hold whoever took it.
What is asked of the mail itself, its duplicates and the ledger, comes after this and refuses nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, assert_never

Posture = Literal["current", "shed", "stuck"]
"""What a node does about a company revision that it lacks: `shed` runs nothing until it is level, `stuck` cannot become
level by itself."""

PAUSES_UNREAD = "pauses_unread"
"""The hold of an inbox on a node that has not read, since it took the seat, whether the seat is paused."""
SEAT_PAUSED = "seat_paused"
"""The hold of a seat that a person paused."""
NO_ENGINE = "no_engine"
"""The hold of a seat that nothing can run as this node is set up."""
AGENT_NOT_READY = "agent_not_ready"
"""The hold of a seat whose agent is being started, or cannot be."""
BUDGET_WINDOW = "budget_window"
"""The hold of a seat that may spend nothing more until a window of its budget ends."""
SANDBOX = "sandbox"
"""The hold of a seat whose sandbox works for it."""

_HOLDS = {
    PAUSES_UNREAD: "this node has not read the pauses yet",
    SEAT_PAUSED: "a person paused the seat",
    NO_ENGINE: "nothing here can run the seat",
    AGENT_NOT_READY: "its agent is not ready",
    SANDBOX: "its sandbox is at work",
    BUDGET_WINDOW: "its budget is spent",
}


def hold_reason(name: str) -> str:
    """What a hold of this name means, for people; "" where only its name is known."""
    return _HOLDS.get(name, "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a delivery is not worked.

    Attributes:
        name: for programs and status pages.
        reason: for people.
        is_parked: a hold of that name is in force, and the mail waits for it to be lifted.
    """

    name: str
    reason: str
    is_parked: bool = False


def unowned(handle: str) -> Refusal:
    """What mail of a seat is told that this node may start no turn of."""
    return Refusal("not_owned", f'seat "{handle}" is not owned here')


def screen(handle: str, *, is_owned: bool, holds: Collection[str], posture: Posture) -> Refusal | None:
    """The first reason not to work a delivery, or None to go on.

    Args:
        handle: the seat whose mail it is.
        is_owned: a new turn of the seat may start here now.
        holds: the names of the holds in force on the seat's inbox.
        posture: this node's.
    """
    if not is_owned:
        return unowned(handle)
    if holds:
        name = next((name for name in _HOLDS if name in holds), None) or min(holds)
        return Refusal(name, _HOLDS.get(name, f"its inbox is held: {name}"), is_parked=True)
    match posture:
        case "current":
            return None
        case "shed" | "stuck":
            return Refusal(posture, "this node lacks the company's present revision")
        case _:
            assert_never(posture)
