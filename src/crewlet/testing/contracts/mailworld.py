"""What the mail contract's checks run in: a broker, as many clients as a check wants, and a look behind the port."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from crewlet.ports.cells import BucketSpec, Cells
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Ack, Backlog, Bury, Delivery, Mail, Outcome, Settling, Subscription

PATIENCE_S = 40.0
LONG_S = 3600.0


class LiveMail(Mail, Protocol):
    """Mail with its beginning and end."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter as the broker keeps it."""

    id: str
    data: bytes
    headers: dict[str, str]


class MailWorld(Protocol):
    """One broker. A new world may live on an old broker, so checks name everything through `topic`."""

    @property
    def clock(self) -> Clock: ...

    @property
    def ack_window_s(self) -> float: ...

    @property
    def ceiling(self) -> int:
        """The largest message in bytes, or thereabouts."""
        ...

    def topic(self, name: str) -> str:
        """A topic that no other check uses: `crewlet.agent.{something}.x.{name}`, so that it is no seat's."""
        ...

    async def client(self, *, is_started: bool = True) -> LiveMail:
        """One more node's mail."""
        ...

    async def cells(self, spec: BucketSpec) -> Cells:
        """A bucket beside the mail."""
        ...

    async def kept(self, topic: str) -> int:
        """How many messages the broker keeps of a topic."""
        ...

    async def dead_letters(self, topic: str) -> Sequence[DeadLetter]:
        """What fell out of a topic, oldest first."""
        ...


class MakeWorld(Protocol):
    """Makes worlds; closing one stops its clients."""

    def __call__(
        self, *, delivery_budget: int = 25, ack_window_s: float = 30.0
    ) -> AbstractAsyncContextManager[MailWorld]: ...


Answer = Callable[[Sequence[Delivery]], Awaitable[Outcome | Settling | Bury]]


def when(released: asyncio.Event, outcome: Outcome) -> Answer:
    """An answer that is given once the event is set: a handler that is held up until then."""

    async def answer(_: Sequence[Delivery]) -> Outcome:
        await released.wait()
        return outcome

    return answer


@dataclass
class Desk:
    """A handler that writes down what it was handed, and answers as it is told.

    Attributes:
        answers: the outcomes of the next calls; an Ack when it has run out.
        calls: the message ids of each call.
        lefts: `deliveries_left` of each call's first delivery.
    """

    answers: list[Outcome | Settling | Answer] = field(default_factory=list[Outcome | Settling | Answer])
    calls: list[list[str]] = field(default_factory=list[list[str]])
    lefts: list[int] = field(default_factory=list[int])
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(self, deliveries: Sequence[Delivery]) -> Outcome | Settling | Bury:
        self.calls.append([delivery.id for delivery in deliveries])
        self.lefts.append(deliveries[0].deliveries_left)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            answer = self.answers.pop(0) if self.answers else Ack()
            return await answer(deliveries) if callable(answer) else answer
        finally:
            self.at_once -= 1

    @property
    def ids(self) -> list[str]:
        """Every id handled, in order."""
        return [found for call in self.calls for found in call]


async def until(world: MailWorld, is_so: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    """Wait for a condition. Raises AssertionError when it did not come true."""
    ends = world.clock.elapsed() + within_s
    while not is_so():
        assert world.clock.elapsed() < ends, "the condition did not come true in time"
        await world.clock.sleep(0.005)


async def until_kept(world: MailWorld, topic: str, count: int) -> None:
    """Wait until the broker keeps so many messages of a topic: several servers let go of one after its ack."""
    ends = world.clock.elapsed() + PATIENCE_S
    while (kept := await world.kept(topic)) != count:
        assert world.clock.elapsed() < ends, f"{kept} messages are kept of {topic}, and {count} were to be"
        await world.clock.sleep(0.005)


async def until_backlog(
    world: MailWorld, mail: Mail, subscription: Subscription, is_so: Callable[[Backlog], bool]
) -> Backlog:
    """Wait until what lies on a subscription is as wanted."""
    ends = world.clock.elapsed() + PATIENCE_S
    backlog: Backlog | None = None
    while True:
        with suppress(Unavailable):
            backlog = await mail.waiting(subscription)
            assert backlog is not None, "the subscription is gone"
            if is_so(backlog):
                return backlog
        assert world.clock.elapsed() < ends, f"the backlog stays {backlog}"
        await world.clock.sleep(0.01)


async def quiet(world: MailWorld, seconds: float = 0.3) -> None:
    """Give what must not happen a chance to happen."""
    await world.clock.sleep(seconds)


async def send(mail: Mail, topic: str, *ids: str) -> None:
    """Publish one message an id; its text is its id."""
    for message_id in ids:
        await mail.publish(topic, message_id.encode(), message_id=message_id)


def key(delivery: Delivery) -> str:
    """The conversation of a test message: what stands before the colon of its id."""
    return delivery.id.partition(":")[0]


async def raises(verb: Awaitable[object], kind: type[Exception]) -> None:
    """Raises AssertionError unless the awaited verb raises this kind."""
    try:
        await verb
    except kind:
        return
    raise AssertionError(f"it did not raise {kind.__name__}")


def raises_now(verb: Callable[[], object], kind: type[Exception]) -> None:
    """Raises AssertionError unless the call raises this kind."""
    try:
        verb()
    except kind:
        return
    raise AssertionError(f"it did not raise {kind.__name__}")
