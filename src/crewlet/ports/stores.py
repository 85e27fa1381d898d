"""What the broker keeps for the company, looked at from outside: whether it is there, and loses nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FaultKind = Literal["missing", "unfit", "reset"]


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One thing that is wrong with a stream or bucket.

    Attributes:
        store: its name.
        kind: `missing` and `unfit` as long as they are so; `reset` is told once, of one that was made anew, emptied or
            put back to what it was before.
        reason: what is wrong, and what to do, without its name.
    """

    store: str
    kind: FaultKind
    reason: str


class Stores(Protocol):
    """Looks at all that the company's nodes have made on the broker."""

    async def faults(self) -> Sequence[StoreFault]:
        """What is wrong now, by the first call's view of what there is.

        Raises:
            Unavailable: nobody answered, or not for all of it.
        """
        ...
