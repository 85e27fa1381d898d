"""Mail that lies in an inbox while its reader asks for it and is given nothing: noticed, told, and got moving.

A consumer may show mail and give none of it, as after an election, or where the broker lost track of who listens. No
client can prevent that. What is done about it leaves what is unsettled where it is: the reader asks over a new inbox,
then the consumer's leader is asked to hand over to another member.
"""

import math
from collections.abc import Sequence

import structlog

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import Reply, ask
from crewlet.adapters.nats.pulls import Pulls
from crewlet.adapters.nats.shapes import Success
from crewlet.adapters.nats.streams import stream_of
from crewlet.adapters.nats.subscriptions import Consumers, consumer_name
from crewlet.adapters.nats.translate import ApiError
from crewlet.mail.feed import PULL_EXPIRY_S
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Subscription

LOOK_S = 60.0
"""How often it is asked what lies in the inboxes, once for all that are read over one connection."""
QUIET_S = 15.0
"""For how long a reader must have asked and heard nothing; also from one try to get it moving to the next."""

log = structlog.get_logger()


class StallWatch:
    """Watches over one reader. Nothing is asked of its own consumer unless mail lies in its inbox."""

    def __init__(self, connection: Connection, consumers: Consumers, subscription: Subscription, pulls: Pulls) -> None:
        self._connection = connection
        self._consumers = consumers
        self._subscription = subscription
        self._pulls = pulls
        self._quiet_since = math.inf
        self._looked_at = -math.inf
        self._given: int | None = None
        self._tries = 0
        self._next_at = -math.inf
        self._log = log.bind(topic=subscription.topic, group=subscription.group)

    def heard(self) -> None:
        """Something was delivered."""
        if self._tries:
            self._log.info("mailbox_moves_again", tries=self._tries)
        self._quiet_since, self._given, self._tries = math.inf, None, 0

    async def look(self) -> None:
        """To be called after each pull that brought nothing, with nothing in hand."""
        now = self._connection.clock.elapsed()
        if now - self._looked_at > 4 * PULL_EXPIRY_S:
            # It was held back meanwhile.
            self._quiet_since, self._given = now, None
        self._looked_at = now
        self._quiet_since = min(self._quiet_since, now)
        if now < self._next_at or now - self._quiet_since < QUIET_S:
            return
        if self._given is None and not await self._lay_here():
            return
        self._next_at = now + 2 * PULL_EXPIRY_S
        found = await self._consumers.look_after(self._subscription)
        if found is None or found.get("paused") or not int(found["num_pending"]) or self._quiet_since == math.inf:
            self._given, self._tries = None, 0
            self._next_at = now + QUIET_S
            return
        given, self._given = self._given, int(found["delivered"]["consumer_seq"])
        if given == self._given:
            # Two looks with pulls between them: mail waited, and none was given to anybody.
            self._next_at = now + QUIET_S
            await self._get_moving(found)

    async def _lay_here(self) -> bool:
        """Whether mail lay in the inbox while nothing was heard already. Unknown is no."""
        counted_at, counts = await self._consumers.lying(stream_of(self._subscription.topic), every_s=LOOK_S)
        return counted_at >= self._quiet_since and counts.get(self._subscription.topic, 0) > 0

    async def _get_moving(self, found: Reply) -> None:
        self._tries += 1
        cluster: Reply = found.get("cluster") or {}
        self._consumers.alarm(
            consumer_name(self._subscription),
            "mailbox_stalled",
            topic=self._subscription.topic,
            waiting=str(found["num_pending"]),
            open_pulls=str(found["num_waiting"]),
            leader=str(cluster.get("leader", "")),
        )
        if self._tries % 2:
            await self._pulls.renew()
        elif _can_take_over(cluster.get("replicas") or []):
            await self._hand_over()

    async def _hand_over(self) -> None:
        """Another member leads the consumer: what is unsettled is known to all that are current."""
        stream, name = stream_of(self._subscription.topic).name, consumer_name(self._subscription)
        try:
            subject = f"CONSUMER.LEADER.STEPDOWN.{stream}.{name}"
            await ask(self._connection, subject, {}, shape=Success, budget_s=0.0)
        except (ApiError, Unavailable) as error:
            self._log.warning("mailbox_leader_kept", error=str(error))
        else:
            self._log.warning("mailbox_leader_changed")


def _can_take_over(replicas: Sequence[Reply]) -> bool:
    return any(each.get("current") and not each.get("offline") for each in replicas)
