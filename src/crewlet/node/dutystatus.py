"""What a node shows of the company's duties: frozen snapshots that the web and the command line print alike."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class TickSnapshot:
    """One tick of a duty on this node.

    Attributes:
        outcome: `done`; `failed`, in part or whole; `held` (another node does the duty); `unclaimed` (it is not known
            who does it); `running`.
        detail: what was done, what failed, or the owner that does it.
        began_at: wall clock.
    """

    outcome: Literal["done", "failed", "held", "unclaimed", "running"]
    detail: str = ""
    began_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DutySnapshot:
    """One duty, and who does it: nobody where `node` is None.

    Attributes:
        every_s: seconds between ticks.
        since: the store's clock when its holder took it.
        expires_in: seconds until a peer may take it, unless its holder ticks again.
        last_here: the newest tick on the node that answers.
    """

    name: str
    purpose: str
    every_s: float
    node: str | None = None
    owner: str | None = None
    since: datetime | None = None
    expires_in: float | None = None
    last_here: TickSnapshot | None = None


@dataclass(frozen=True, slots=True)
class DutiesSnapshot:
    """Every duty of the company. `does_duties`: whether the node that answers has the role for them."""

    this_node: str
    does_duties: bool
    duties: tuple[DutySnapshot, ...]
