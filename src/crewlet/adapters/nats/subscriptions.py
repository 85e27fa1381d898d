"""Durable subscriptions as JetStream consumers: their names, their settings, and the verbs on them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from crewlet.adapters.nats import shapes
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.deleting import delete_consumer
from crewlet.adapters.nats.jsapi import CONSUMER_EXISTS, CONSUMER_NOT_FOUND, Reply, ask
from crewlet.adapters.nats.leftover import Left, left_by
from crewlet.adapters.nats.streams import NS, MailStream, stream_names, stream_of
from crewlet.adapters.nats.translate import STREAM_NOT_FOUND, ApiError, StreamGone, unavailable
from crewlet.mail import topics
from crewlet.mail.patterns import check_group, digest, matcher, readable
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Backlog, Subscription

MAX_ACK_PENDING = 10_000
PAGE_TRIES = 8
ALARM_EVERY_S = 60.0
UNWANTED = frozenset(
    {"backoff", "headers_only", "inactive_threshold", "max_batch", "max_bytes", "max_expires"}
    | {"priority_groups", "priority_policy", "priority_timeout"}
)
"""What shortens a delivery's window, strips it, ends the consumer, or has pulls refused."""
TOPIC_KEY, GROUP_KEY, MAKER_KEY = "crewlet_topic", "crewlet_group", "crewlet_maker"

Counted = tuple[float, dict[str, int]]
"""When it was asked, and how many messages lie at each topic at which any do."""

log = structlog.get_logger()


def consumer_name(subscription: Subscription) -> str:
    """The durable's name: the group itself for a seat's mailbox, else a readable head and a digest of the pair.

    The two kinds never meet: the second has an underscore, which no handle may have.
    """
    if topics.seat_of(subscription) is not None:
        return subscription.group
    return f"{readable(subscription.group)}_{digest(subscription)}"


@dataclass(frozen=True, slots=True)
class Ensured:
    """A consumer that is there.

    Attributes:
        is_new: this call made it.
        ack_window_s: the window that its deliveries really have.
        delivered: the newest sequence that it has ever given to anybody.
    """

    is_new: bool
    ack_window_s: float
    delivered: int = 0


@dataclass(frozen=True, slots=True)
class Consumers:
    """The consumers of the broker behind one connection.

    Attributes:
        ack_window_s: the window a consumer made here gets, and the least that one found here must have.
        last_cover: which subscription was last seen to keep a topic: where to ask first, never an answer.
        alarmed_at: when the alarm for something that is gone was last raised, by its name.
        counted: when it was last asked how many messages lie at each topic of a stream, and the answer, by its name.
    """

    connection: Connection
    entropy: Entropy
    ack_window_s: float
    last_cover: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    alarmed_at: dict[str, float] = field(default_factory=dict[str, float])
    counted: dict[str, Counted] = field(default_factory=dict[str, Counted])

    async def ensure(self, subscription: Subscription) -> Ensured:
        """Make the consumer if it is not there, and mend one that would lose mail or give it back too soon.

        Raises:
            Unavailable: nobody answered, or the name is taken by a consumer of another topic.
        """
        stream = stream_of(subscription.topic)
        check_group(subscription.group)
        found = await self.info(subscription)
        if found is None:
            if await self._create(stream, subscription):
                return Ensured(is_new=True, ack_window_s=self.ack_window_s)
            found = await self.info(subscription)
        if found is None:
            raise Unavailable(f"the mailbox part {subscription.topic} is being deleted")
        await self._mend(stream, subscription, found["config"])
        return Ensured(
            is_new=False,
            ack_window_s=max(self.ack_window_s, int(found["config"].get("ack_wait", 0)) / NS),
            delivered=int(found["delivered"]["stream_seq"]),
        )

    async def info(self, subscription: Subscription, *, budget_s: float = 5.0) -> Reply | None:
        """What the consumer's leader says of it, or None when there is none."""
        stream = stream_of(subscription.topic)
        subject = f"CONSUMER.INFO.{stream.name}.{consumer_name(subscription)}"
        try:
            return await ask(self.connection, subject, shape=shapes.Consumer, budget_s=budget_s)
        except ApiError as error:
            if error.err_code == CONSUMER_NOT_FOUND:
                return None
            raise unavailable(error, stream.name) from error

    async def look_after(self, subscription: Subscription) -> Reply | None:
        """See to a subscription that is attached here: what others made of it is mended, or an alarm, now and then,
        where it is not ours to mend. Nothing that was deleted is made anew.

        Returns:
            What its leader said of it; None where nobody did, or there is none.
        """
        try:
            found = await self.info(subscription, budget_s=0.0)
            if found is None:
                self.alarm(consumer_name(subscription), "mailbox_gone", topic=subscription.topic)
                return None
            if found.get("paused"):
                until = str(found["config"].get("pause_until", ""))
                self.alarm(consumer_name(subscription), "mailbox_paused", topic=subscription.topic, until=until)
            await self._mend(stream_of(subscription.topic), subscription, found["config"])
            return found
        except StreamGone:
            stream = stream_of(subscription.topic).name
            self.alarm(stream, "mail_stream_lost", stream=stream, reason="it was deleted; what waited on it is gone")
        except Unavailable as error:
            log.info("mailbox_unserved", topic=subscription.topic, error=str(error))
        return None

    async def lying(self, stream: MailStream, *, every_s: float) -> Counted:
        """What lies in a stream, asked once for all who ask within that time; nothing where nobody answered."""
        now = self.connection.clock.elapsed()
        counted = self.counted.get(stream.name)
        if counted is not None and now - counted[0] < every_s:
            return counted
        self.counted[stream.name] = (now, {})  # whoever asks meanwhile does not ask as well
        try:
            body = {"subjects_filter": ">"}
            answer = await ask(self.connection, f"STREAM.INFO.{stream.name}", body, shape=shapes.Counted, budget_s=0.0)
            self.counted[stream.name] = (now, answer["state"].get("subjects") or {})
        except (ApiError, Unavailable) as error:
            log.info("mail_not_counted", stream=stream.name, error=str(error))
        return self.counted[stream.name]

    def alarm(self, name: str, event: str, **fields: str) -> None:
        """Say that something is wrong, again only after a while."""
        now = self.connection.clock.elapsed()
        if now - self.alarmed_at.get(name, -math.inf) >= ALARM_EVERY_S:
            self.alarmed_at[name] = now
            log.error(event, **fields)

    async def backlog(self, subscription: Subscription) -> Backlog | None:
        info = await self.info(subscription)
        if info is None:
            return None
        pending, in_hand, pulls = (int(info[name]) for name in ("num_pending", "num_ack_pending", "num_waiting"))
        return Backlog(pending, in_hand, pulls, is_paused=bool(info.get("paused")))

    async def delete(self, subscription: Subscription, *, admit: Callable[[], None] | None, patience_s: float) -> bool:
        stream, name = stream_of(subscription.topic), consumer_name(subscription)
        return await delete_consumer(self.connection, stream.name, name, admit=admit, patience_s=patience_s)

    async def is_covered(self, topic: str) -> bool:
        """Whether some subscription keeps what is published to a topic. Asked of the broker, never remembered.

        A seat's mail is kept by its own mailbox and by nobody else who listens, so that one question answers for it,
        however large the company. For any other topic all consumers are looked at where the likely one is gone.
        """
        stream = stream_of(topic)
        mailbox = topics.mailbox_at(topic)
        if mailbox is not None:
            return await self.info(mailbox) is not None
        likely = self.last_cover.get(topic)
        if likely is not None and await self.info(likely) is not None:
            return True
        self.last_cover.pop(topic, None)
        for consumer in await self._all(stream.name):
            if _filters(consumer, topic):
                found = _named(stream.name, consumer)
                if found is not None and found.topic == topic:
                    self.last_cover[topic] = found
                return True
        return False

    async def listing(self, pattern: str) -> Sequence[Subscription]:
        """Every subscription of ours whose topic matches, in order.

        Raises:
            Misuse: the pattern is empty or not one.
            Unavailable: nobody answered, or no complete listing could be had.
        """
        matches = matcher(pattern)
        found: list[Subscription] = []
        for stream in await stream_names(self.connection):
            if not stream.startswith("CREWLET_"):
                continue
            for consumer in await self._all(stream):
                subscription = _named(stream, consumer)
                if subscription is not None and matches(subscription.topic):
                    found.append(subscription)
        return sorted(found)

    async def _create(self, stream: MailStream, subscription: Subscription) -> bool:
        """Create only. The maker's token makes a repeat after a lost answer ours, and a peer's equal create not."""
        name = consumer_name(subscription)
        config = {
            "name": name,
            "durable_name": name,
            "filter_subject": subscription.topic,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": round(self.ack_window_s * NS),
            "max_deliver": -1,
            "max_ack_pending": MAX_ACK_PENDING,
            "metadata": {**_said_of(subscription), MAKER_KEY: self.entropy.token()},
        }
        body = {"stream_name": stream.name, "action": "create", "config": config}
        subject = f"CONSUMER.CREATE.{stream.name}.{name}.{subscription.topic}"
        try:
            await ask(self.connection, subject, body, shape=shapes.Consumer, timeout_s=3.0, budget_s=8.0)
        except ApiError as error:
            if error.err_code == CONSUMER_EXISTS:
                return False
            raise unavailable(error, stream.name) from error
        return True

    async def _mend(self, stream: MailStream, subscription: Subscription, config: dict[str, Any]) -> None:
        """Only ever towards more: two nodes that want different windows settle on the longer, and neither flaps."""
        if config.get("filter_subject") != subscription.topic:
            log.error("subscription_foreign", topic=subscription.topic, group=subscription.group)
            raise Unavailable(f"{consumer_name(subscription)} is a consumer of {config.get('filter_subject')!r}")
        name = consumer_name(subscription)
        whole = {key: value for key, value in config.items() if key not in UNWANTED}
        window = round(self.ack_window_s * NS)
        if int(config.get("ack_wait", 0)) < window:
            whole["ack_wait"] = window
        if int(config.get("max_deliver", -1)) != -1:
            whole["max_deliver"] = -1
        if 0 < int(config.get("max_ack_pending", 0)) < MAX_ACK_PENDING:
            whole["max_ack_pending"] = MAX_ACK_PENDING
        whole["durable_name"] = name
        whole["metadata"] = {**(config.get("metadata") or {}), **_said_of(subscription)}
        if whole == config:
            return
        changed = sorted(key for key in {*whole, *config} if whole.get(key) != config.get(key))
        log.info("subscription_mended", topic=subscription.topic, group=subscription.group, changed=changed)
        body = {"stream_name": stream.name, "action": "update", "config": whole}
        try:
            await ask(
                self.connection,
                f"CONSUMER.CREATE.{stream.name}.{name}.{subscription.topic}",
                body,
                shape=shapes.Consumer,
            )
        except ApiError as error:
            raise unavailable(error, stream.name) from error

    async def left(self, stream: str) -> list[Left]:
        """The consumers of a stream with deliveries that nobody has settled.

        Raises:
            Unavailable: they could not be listed.
        """
        found: list[Left] = []
        for info in await self._all(stream):
            subscription = _named(stream, info)
            if subscription is not None and (left := left_by(subscription, info)) is not None:
                found.append(left)
        return found

    async def _all(self, stream: str) -> list[dict[str, Any]]:
        """Every consumer of a stream, however many pages. A listing that moved underneath is begun again."""
        for _ in range(PAGE_TRIES):
            consumers = await self._one_listing(stream)
            if consumers is not None:
                return consumers
            await self.connection.clock.sleep(0.05)
        raise Unavailable(f"the consumers of {stream} could not be listed completely")

    async def _one_listing(self, stream: str) -> list[dict[str, Any]] | None:
        by_name: dict[str, dict[str, Any]] = {}
        offset, total = 0, None
        while total is None or offset < total:
            try:
                page = await self._page(f"CONSUMER.LIST.{stream}", offset)
            except ApiError as error:
                if error.err_code == STREAM_NOT_FOUND:
                    return []
                raise Unavailable(str(error)) from error
            consumers: list[dict[str, Any]] = page.get("consumers") or []
            if page.get("missing") or (total is not None and int(page["total"]) != total):
                return None
            total = int(page["total"])
            by_name.update({consumer["name"]: consumer for consumer in consumers})
            offset += len(consumers)
            if not consumers and offset < total:
                return None
        return list(by_name.values()) if len(by_name) == total else None

    async def _page(self, subject: str, offset: int) -> Reply:
        return await ask(
            self.connection, subject, {"offset": offset}, shape=shapes.Consumers, timeout_s=5.0, budget_s=10.0
        )


def _said_of(subscription: Subscription) -> dict[str, str]:
    """What a consumer says of itself, so that a listing knows the pair that it was made for."""
    return {TOPIC_KEY: subscription.topic, GROUP_KEY: subscription.group}


def _filters(consumer: dict[str, Any], topic: str) -> bool:
    config = consumer["config"]
    if not config.get("durable_name"):
        return False
    filters: list[str] = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    return any(matcher(found)(topic) for found in filters)


def _named(stream: str, consumer: dict[str, Any]) -> Subscription | None:
    """The pair a consumer was made for; None, with a word in the log, where its name does not follow from one."""
    config = consumer["config"]
    if not config.get("durable_name"):
        return None
    metadata: dict[str, str] = config.get("metadata") or {}
    subscription = Subscription(metadata.get(TOPIC_KEY, ""), metadata.get(GROUP_KEY, ""))
    if not subscription.topic or consumer_name(subscription) != consumer["name"]:
        log.warning("jetstream_subscription_unnamed", stream=stream, consumer=consumer["name"])
        return None
    return subscription
