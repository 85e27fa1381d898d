"""The mail twin of a simulation: the twin's broker, watched, and behind the moods of the simulated one."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Published, Subscription
from crewlet.testing.sim.clock import SimClock
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.loop import Process, SimLoop
from crewlet.testing.sim.wire import Broker, Wire
from crewlet.testing.twins.mailbroker import Durable, TwinBroker, TwinPull

T = TypeVar("T")

STREAM = "mail"

_NEVER = datetime.max.replace(tzinfo=UTC)

# (budget, one try), in seconds, of what the broker's client repeats by itself; anything else is a question.
_PATIENCE = {
    "publish": (6.0, 1.5),
    "ack": (5.0, 1.0),
    "nak": (5.0, 1.0),
    "prolong": (0.5, 0.5),
    "pull": (1.0, 1.0),
    "detach": (3.0, 1.5),
    "dead_letter": (6.0, 1.5),
}
_QUESTION = (5.0, 1.5)


class MailObserver(Protocol):
    """Sees what the broker does with mail, as it does it."""

    def accepted(self, topic: str, message_id: str, sequence: int, data: bytes) -> None: ...

    def acked(self, topic: str, message_id: str, sequence: int) -> None: ...

    def deleted(self, subscription: Subscription) -> None: ...


class SimMailBroker(TwinBroker):
    """The broker."""

    def __init__(
        self, loop: SimLoop, broker: Broker, observer: MailObserver, *, ack_window_s: float, pull_expiry_s: float
    ) -> None:
        clock = SimClock(loop, rate=1.0, offset_s=0.0)
        super().__init__(clock, ack_window_s=ack_window_s, pull_expiry_s=pull_expiry_s)
        self._mood = broker
        self._observer = observer
        self._pulls: dict[tuple[Process, Subscription], list[TwinPull]] = {}

    def publish(
        self, topic: str, data: bytes, *, message_id: str, headers: dict[str, str], once: str | None = None
    ) -> Published:
        published = super().publish(topic, data, message_id=message_id, headers=headers, once=once)
        if not published.is_duplicate:
            self._observer.accepted(topic, message_id, published.sequence, data)
        return published

    def ack(self, subscription: Subscription, sequence: int) -> None:
        durable = self._durables.get(subscription)
        pending = durable.pending.get(sequence) if durable is not None else None
        super().ack(subscription, sequence)
        if pending is not None:
            self._observer.acked(subscription.topic, pending.message.id, sequence)

    def delete(self, subscription: Subscription) -> bool:
        was_there = super().delete(subscription)
        if was_there:
            self._observer.deleted(subscription)
        return was_there

    def open_pull(self, subscription: Subscription, count: int, wait_s: float) -> TwinPull:
        pull = super().open_pull(subscription, count, wait_s)
        if self._mood.caller is not None and not pull.is_ended:
            mine = self._pulls.setdefault((self._mood.caller, subscription), [])
            mine[:] = [each for each in mine if not each.is_ended]
            mine.append(pull)
        return pull

    def pulls_of(self, process: Process, subscription: Subscription) -> int:
        """How many pulls of a process are open on a subscription."""
        now = self.clock.elapsed()
        pulls = self._pulls.get((process, subscription), ())
        return sum(not pull.is_ended and pull.expires_at > now for pull in pulls)

    def serve(self, durable: Durable) -> None:
        if not self._mood.is_down and not self._mood.stands_still(STREAM):
            super().serve(durable)

    def seconds_to_next(self, subscription: Subscription, pull: TwinPull) -> float:
        # While the broker does nothing, what is overdue stays so: whoever waits looks again later.
        is_idle = self._mood.is_down or self._mood.stands_still(STREAM)
        return max(0.5 if is_idle else 0.0, super().seconds_to_next(subscription, pull))

    def hang_up(self) -> None:
        """Every connection is gone, and every open pull with it."""
        for durable in self._durables.values():
            pulls, durable.pulls = durable.pulls, []
            for pull in pulls:
                pull.end()

    def unsettled(self, before: datetime = _NEVER) -> dict[Subscription, int]:
        """Mail from before an instant that waits or is in hand, by subscription, where there is some."""
        counts = {
            each.subscription: sum(message.published_at < before for message in each.unsettled)
            for each in self._durables.values()
        }
        return {subscription: count for subscription, count in counts.items() if count}

    def is_unsettled(self, topic: str, sequence: int) -> bool:
        return any(
            sequence in durable.pending or any(message.sequence == sequence for message in durable.waiting)
            for durable in self._covering.get(topic, ())
        )


class SimMailWire:
    """One node incarnation's way to the broker's mail.

    Args:
        leaving: called as each try of a publish leaves.
        trouble: how attaching and detaching go wrong at present: seconds to wait, and the chance to fail.
    """

    def __init__(
        self, wire: Wire, dice: Dice, leaving: Callable[[], None], trouble: Callable[[], tuple[float, float]]
    ) -> None:
        self._wire = wire
        self._dice = dice
        self._leaving = leaving
        self._trouble = trouble

    async def ask(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        admit: Callable[[], None] | None = None,
        final_within_s: float | None = None,
    ) -> T:
        budget_s, try_s = _PATIENCE.get(name, _QUESTION)
        is_final = final_within_s is not None
        budget_s = budget_s if final_within_s is None else final_within_s
        if name in ("attach", "detach"):
            slow_s, failing = self._trouble()
            if slow_s:
                await asyncio.sleep(slow_s * self._dice.random())
            if failing and self._dice.chance(failing):
                budget_s = 0.0
                effect = _unanswerable

        leaves = admit if name != "publish" else partial(self._publishes, admit)
        is_silent = name == "pull"
        return await self._wire.ask(
            STREAM, effect, budget_s=budget_s, try_s=try_s, before_each=leaves, is_silent=is_silent, is_final=is_final
        )

    def _publishes(self, admit: Callable[[], None] | None) -> None:
        if admit is not None:
            admit()
        self._leaving()

    async def crossing(self, sent_at: float) -> bool:
        return await self._wire.crossing(sent_at)

    async def stirs(self, pull: TwinPull, seconds: float) -> None:
        pull.waiter = self._wire.timer(seconds)
        await pull.waiter


def _unanswerable() -> Any:
    raise Unavailable("a planted failure")
