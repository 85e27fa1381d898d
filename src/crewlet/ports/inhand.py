"""What this process has in hand of the broker's mail, told to its parent: should it die, that can go back at once."""

from collections.abc import Sequence
from typing import Protocol


class Slot(Protocol):
    """The deliveries in hand of one attachment. The newest state wins. No verb blocks or raises."""

    def write(self, in_hand: Sequence[tuple[str, float]]) -> None:
        """In hand are these now, each as the broker knows it: one word, which the parent hands to whoever gives back.

        Args:
            in_hand: beside each the reading of `Clock.elapsed` until which a hand-back surely reaches the broker before
                the broker can give the message to anybody else.
        """
        ...

    def close(self) -> None:
        """Nothing is in hand any more, and the slot may be another's. Harmless when repeated."""
        ...


class Slots(Protocol):
    """Where a process tells what it has in hand."""

    def take(self) -> Slot | None:
        """A slot for one more attachment; None when there is none left. What such an attachment has in hand comes back
        when its ack window ends."""
        ...


class NoSlots:
    """For a process without a parent."""

    def take(self) -> "NoSlot":
        return NoSlot()


class NoSlot:
    """Tells nobody."""

    def write(self, in_hand: Sequence[tuple[str, float]]) -> None:
        """Tell nobody."""

    def close(self) -> None:
        """Tell nobody."""
