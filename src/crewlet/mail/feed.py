"""One attachment's end of the wire, as the consume loop sees it: the broker's adapter and the twin each bring one."""

from collections.abc import Callable, Sequence
from typing import Protocol

from crewlet.ports.deadletters import Handling
from crewlet.ports.mail import Delivery

PULL_EXPIRY_S = 1.5
"""How long one pull may stay open. Short, so that a pull lost with a broker is soon asked again."""


class Feed(Protocol):
    """One attachment's end of the wire. `take` has one caller at a time; the others may come from elsewhere.

    Attributes:
        on_arrival: called when a delivery has come, asked for or not; set by the attachment.
        good_until: the reading of `Clock.elapsed` at which the lease behind the attachment ends; set by it. Past that
            nothing is said to the broker twice, and no delivery is extended: it would reach into a successor's work.
    """

    on_arrival: Callable[[], None]
    good_until: float

    @property
    def in_hand(self) -> int:
        """Deliveries taken and not settled."""
        ...

    @property
    def pull_expiry_s(self) -> float:
        """How long one `take` may wait."""
        ...

    async def take(self, count: int, wait_s: float) -> Sequence[Delivery]:
        """Up to `count` deliveries. With `wait_s` 0 only what lies ready; empty when there is nothing.

        It answers empty, after a pause of its own, when the broker did not answer, and at once when it is closing.
        """
        ...

    def leftovers(self) -> Sequence[Delivery]:
        """Deliveries that have come and that no `take` has answered with; they are not kept for the next one."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle for good. It is confirmed in the background, within a bound that `close` waits for.

        Until then they are in hand. Failure is logged: the mail comes back after its window.
        """
        ...

    async def give_back(self, deliveries: Sequence[Delivery], delay_s: float) -> None:
        """Hand back in the order given; returns when the broker has taken each, or within a bound.

        A delivery whose own ack window is not surely still running is let go of without a word.
        """
        ...

    async def give_back_late(self, deliveries: Sequence[Delivery]) -> None:
        """Hand back at once those whose own ack window is surely still running, once each; forget the others."""
        ...

    async def bury(self, delivery: Delivery, reason: str, history: Sequence[Handling]) -> bool:
        """Write a dead letter. The delivery stays in hand. False: it was in hand no more, and nothing was written.

        Raises:
            CrewletError: the letter is not known to be there.
        """
        ...

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        """Let go without a word to the broker."""
        ...

    def prolong(self) -> None:
        """Give each delivery in hand that is not being settled a fresh window, in the background.

        Only an extension that the broker has confirmed counts: one that was lost leaves the old window running.
        """
        ...

    def stop(self) -> None:
        """Open no pull any more; a `take` that waits answers empty at once."""
        ...

    async def close(self) -> None:
        """Stop, and prove that none is open.

        Raises:
            DetachUnproven: the proof is missing; a further call tries again.
        """
        ...
