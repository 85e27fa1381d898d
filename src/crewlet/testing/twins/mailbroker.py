"""The broker of the mail twin: streams, durable subscriptions and pulls in memory, with the real one's awkward sides.

It copies what the real broker does to mail that nobody settles, to stale settlements and to forgotten pulls. It has no
task of its own: whatever is due happens when somebody next looks, and whoever waits for mail looks when it is due.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crewlet.mail import topics
from crewlet.mail.feed import PULL_EXPIRY_S
from crewlet.mail.patterns import check_group, is_topic, matcher
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import Backlog, MessageTooLarge, NoMailbox, Published, Subscription

DEDUPE_WINDOW_S = 120.0
INTEREST_PREFIXES = ("crewlet.agent.", "crewlet.notifications.")
RECORD_PREFIXES = ("crewlet.events.", "dlq.")


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a stream keeps it."""

    sequence: int
    topic: str
    id: str
    data: bytes
    headers: dict[str, str]
    published_at: datetime


@dataclass(slots=True)
class Pending:
    """A message that was handed over at least once and is not settled. `due_at` is when it comes back by itself."""

    message: Message
    deliveries: int = 0
    due_at: float = math.inf


@dataclass(slots=True)
class TwinPull:
    """An open request for mail. It lives at the broker, whether or not its client does.

    Attributes:
        served_at: when it last got something, on the broker's clock.
        waiter: who waits for something to happen to it.
    """

    count: int
    expires_at: float
    served_at: float = 0.0
    got: list[tuple[Message, int]] = field(default_factory=list[tuple[Message, int]])
    is_ended: bool = False
    waiter: asyncio.Future[None] | None = None

    def end(self) -> None:
        self.is_ended = True
        self.stir()

    def stir(self) -> None:
        """Something has happened to it: whoever waits goes on."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


@dataclass(slots=True)
class Durable:
    """One durable subscription."""

    subscription: Subscription
    waiting: deque[Message] = field(default_factory=deque[Message])
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])
    ready: list[int] = field(default_factory=list[int])
    pulls: list[TwinPull] = field(default_factory=list[TwinPull])

    @property
    def next_due(self) -> float:
        return min((one.due_at for one in self.pending.values()), default=math.inf)

    @property
    def unsettled(self) -> Sequence[Message]:
        """What waits or is in hand."""
        return [*self.waiting, *(one.message for one in self.pending.values())]

    def serve(self, now: float, window_s: float) -> None:
        """What is due comes back, first in stream order; then open pulls get mail, what came back before new mail."""
        if self.pending:
            for sequence in sorted(sequence for sequence, one in self.pending.items() if one.due_at <= now):
                self.pending[sequence].due_at = math.inf
                self.come_back(sequence)
        for pull in [pull for pull in self.pulls if pull.expires_at <= now]:
            self.pulls.remove(pull)
            pull.end()
        while self.pulls and (self.ready or self.waiting):
            pull = self.pulls[0]
            one = self._next()
            one.deliveries += 1
            one.due_at = now + window_s
            pull.got.append((one.message, one.deliveries))
            pull.served_at = now
            pull.stir()
            if len(pull.got) == pull.count:
                self.pulls.pop(0)
                pull.end()

    def come_back(self, sequence: int) -> None:
        if sequence not in self.ready:
            self.ready.append(sequence)

    def settle(self, sequence: int) -> None:
        self.pending.pop(sequence, None)
        if sequence in self.ready:
            self.ready.remove(sequence)

    def _next(self) -> Pending:
        if self.ready:
            return self.pending[self.ready.pop(0)]
        one = Pending(self.waiting.popleft())
        self.pending[one.message.sequence] = one
        return one


class TwinBroker:
    """One broker for any number of clients; its state outlives them.

    Args:
        ack_window_s: how long a delivery that nobody settles or prolongs stays away.
        delivery_budget: what its clients hold deliveries to.
        max_payload: a larger message is refused; bytes.
        pull_expiry_s: how long a pull stays open. The real broker's clients use 1.5 s; a long one makes an idle fleet
            cheap to simulate.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        ack_window_s: float,
        delivery_budget: int = 25,
        max_payload: int = 1_048_576,
        pull_expiry_s: float = PULL_EXPIRY_S,
    ) -> None:
        if ack_window_s <= 0 or delivery_budget < 1:
            raise Misuse("the ack window must be positive and the delivery budget 1 or more")
        self.clock = clock
        self.ack_window_s = ack_window_s
        self.delivery_budget = delivery_budget
        self.max_payload = max_payload
        self.pull_expiry_s = pull_expiry_s
        self._durables: dict[Subscription, Durable] = {}
        self._covering: dict[str, list[Durable]] = {}
        self._streams: dict[str, dict[int, Message]] = {prefix: {} for prefix in (*INTEREST_PREFIXES, *RECORD_PREFIXES)}
        self._last: dict[str, int] = {}
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def publish(
        self, topic: str, data: bytes, *, message_id: str, headers: dict[str, str], once: str | None = None
    ) -> Published:
        """Raises NoMailbox, MessageTooLarge or Misuse, as the port says; a refusal leaves the id unused."""
        prefix = prefix_of(topic)
        if len(data) > self.max_payload:
            raise MessageTooLarge(f"{len(data)} bytes are over the ceiling of {self.max_payload}")
        covering = self._covering.get(topic, [])
        mailbox = topics.mailbox_at(topic)
        is_kept = bool(covering) if mailbox is None else mailbox in self._durables
        if prefix in INTEREST_PREFIXES and not is_kept:
            raise NoMailbox(f"there is no mailbox at {topic}: what is sent there would be lost")
        now = self.clock.elapsed()
        while self._seen and now - next(iter(self._seen.values()))[1] >= DEDUPE_WINDOW_S:
            del self._seen[next(iter(self._seen))]
        key = (topic, message_id if once is None else f"once:{once}")
        if key in self._seen:
            return Published(self._seen[key][0], is_duplicate=True)
        sequence = self._last.get(prefix, 0) + 1
        self._last[prefix] = sequence
        self._seen[key] = (sequence, now)
        message = Message(sequence, topic, message_id, data, dict(headers), self.clock.now())
        self._streams[prefix][sequence] = message
        for durable in covering:
            durable.waiting.append(message)
            self.serve(durable)
        return Published(sequence)

    def ensure(self, subscription: Subscription) -> bool:
        prefix = prefix_of(subscription.topic)
        check_group(subscription.group)
        if subscription in self._durables:
            return False
        kept = (message for message in self._streams[prefix].values() if message.topic == subscription.topic)
        durable = self._durables[subscription] = Durable(subscription, deque(kept))
        self._covering.setdefault(subscription.topic, []).append(durable)
        return True

    def delete(self, subscription: Subscription) -> bool:
        durable = self._durables.pop(subscription, None)
        if durable is None:
            return False
        self._covering[subscription.topic].remove(durable)
        for pull in durable.pulls:
            pull.end()
        for message in [*durable.waiting, *(one.message for one in durable.pending.values())]:
            self._drop_if_settled(message)
        return True

    def listing(self, pattern: str) -> Sequence[Subscription]:
        matches = matcher(pattern)
        return sorted(subscription for subscription in self._durables if matches(subscription.topic))

    def has(self, subscription: Subscription) -> bool:
        return subscription in self._durables

    def backlog(self, subscription: Subscription) -> Backlog | None:
        durable = self._durables.get(subscription)
        if durable is None:
            return None
        self.serve(durable)
        return Backlog(len(durable.waiting), len(durable.pending), len(durable.pulls))

    def retained(self, topic: str) -> Sequence[Message]:
        """What the stream keeps of a topic, oldest first."""
        return [message for message in self._streams[prefix_of(topic)].values() if message.topic == topic]

    @property
    def dead_letters(self) -> Sequence[Message]:
        """Every dead letter, oldest first."""
        return list(self._streams["dlq."].values())

    def bury(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Keep a dead letter, unless one of this subject is there already."""
        if not self.retained(subject):
            self.publish(subject, data, message_id=subject, headers=headers)

    def exhume(self, sequence: int) -> bool:
        """Delete a dead letter. False when there is none at that place."""
        return self._streams["dlq."].pop(sequence, None) is not None

    def open_pull(self, subscription: Subscription, count: int, wait_s: float) -> TwinPull:
        """Ask for mail. With `wait_s` 0 the pull has ended when this returns."""
        pull = TwinPull(count, self.clock.elapsed() + wait_s)
        durable = self._durables.get(subscription)
        if durable is None:
            pull.end()
            return pull
        durable.pulls.append(pull)
        if wait_s > 0:
            self.serve(durable)
            return pull
        # One that does not wait counts as unexpired while it is answered.
        pull.expires_at, expires_at = math.inf, pull.expires_at
        self.serve(durable)
        pull.expires_at = expires_at
        self.serve(durable)
        return pull

    def close_pull(self, subscription: Subscription, pull: TwinPull) -> None:
        """Have an open pull answered, as a wake message would."""
        durable = self._durables.get(subscription)
        if durable is not None and pull in durable.pulls:
            durable.pulls.remove(pull)
        pull.end()

    def seconds_to_next(self, subscription: Subscription, pull: TwinPull) -> float:
        """How long a waiting pull may sleep before somebody has to look again."""
        durable = self._durables.get(subscription)
        due_at = min(pull.expires_at, durable.next_due if durable is not None else math.inf)
        return max(0.0, due_at - self.clock.elapsed())

    def look(self, subscription: Subscription) -> None:
        """Let happen what is due on a subscription."""
        durable = self._durables.get(subscription)
        if durable is not None:
            self.serve(durable)

    def serve(self, durable: Durable) -> None:
        durable.serve(self.clock.elapsed(), self.ack_window_s)

    def ack(self, subscription: Subscription, sequence: int) -> None:
        """Settle, whoever asks and however old the delivery: as with the real broker, any ack settles for everybody."""
        durable = self._durables.get(subscription)
        if durable is not None and sequence in durable.pending:
            message = durable.pending[sequence].message
            durable.settle(sequence)
            self._drop_if_settled(message)

    def nak(self, subscription: Subscription, sequence: int, delay_s: float) -> None:
        """Hand back, whoever asks: a stale holder's nak brings the message to one more reader."""
        durable = self._durables.get(subscription)
        if durable is None or sequence not in durable.pending:
            return
        one = durable.pending[sequence]
        if delay_s > 0:
            one.due_at = self.clock.elapsed() + delay_s
        else:
            one.due_at = math.inf
            durable.come_back(sequence)
        for pull in durable.pulls:
            pull.stir()
        self.serve(durable)

    def prolong(self, subscription: Subscription, sequence: int) -> None:
        """A fresh window from now; of no effect on what is settled or has come back already."""
        durable = self._durables.get(subscription)
        if durable is not None and sequence in durable.pending and sequence not in durable.ready:
            durable.pending[sequence].due_at = self.clock.elapsed() + self.ack_window_s

    def _drop_if_settled(self, message: Message) -> None:
        prefix = prefix_of(message.topic)
        wanted = any(
            message.sequence in durable.pending or message in durable.waiting
            for durable in self._covering.get(message.topic, ())
        )
        if prefix in INTEREST_PREFIXES and not wanted:
            self._streams[prefix].pop(message.sequence, None)


def prefix_of(topic: str) -> str:
    """The stream a topic belongs to. Raises Misuse for what is not a mail topic."""
    if is_topic(topic):
        for prefix in (*INTEREST_PREFIXES, *RECORD_PREFIXES):
            if topic.startswith(prefix):
                return prefix
    raise Misuse(f"{topic!r} is not a mail topic")
