"""What this process tells its parent about how long it may live."""

from typing import Protocol


class Deadline(Protocol):
    """One instant, shared with the parent process. The newest one wins."""

    def good_until(self, instant: float | None) -> None:
        """The leases of this process are good until this reading of `Clock.elapsed`; None when nothing is at stake.

        Past the instant the parent kills this process and all its descendants. Never blocks, never raises.
        """
        ...

    def beat(self) -> None:
        """The loop that keeps the leases turned; the first beat says that the node has started.

        Never blocks, never raises.
        """
        ...


class NoDeadline:
    """For a process without a parent, and where leases cannot lapse."""

    def good_until(self, instant: float | None) -> None:
        """Tell nobody."""

    def beat(self) -> None:
        """Tell nobody."""
