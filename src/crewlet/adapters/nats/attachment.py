"""One attachment's end of the wire: what it has in hand, and how each delivery is settled or handed back."""

import asyncio
import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog
from nats.errors import Error as ClientError

from crewlet.adapters.nats.acks import ACK, Acks
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.deadletters import NatsDeadLetters
from crewlet.adapters.nats.hand import Held, Mark
from crewlet.adapters.nats.jsapi import Reply
from crewlet.adapters.nats.leftover import Left, give_back
from crewlet.adapters.nats.lookup import remove_message
from crewlet.adapters.nats.publishing import ID_HEADER, WAKE_HEADER, publish_raw
from crewlet.adapters.nats.pulls import Pulls
from crewlet.adapters.nats.stall import StallWatch
from crewlet.adapters.nats.streams import NS, stream_of
from crewlet.adapters.nats.subscriptions import Consumers, consumer_name
from crewlet.adapters.nats.translate import StreamGone, parse_place
from crewlet.mail.feed import PULL_EXPIRY_S
from crewlet.ports.deadletters import Handling
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import CrewletError, NotLive, Unavailable
from crewlet.ports.inhand import NoSlot, Slot, Slots
from crewlet.ports.mail import Delivery, DetachUnproven, Subscription

SETTLE_TIMEOUT_S = 1.0
SETTLE_BUDGET_S = 5.0
SETTLE_PAUSE_S = 0.1
PROOF_BUDGET_S = 3.0
PROOF_MARGIN_S = 0.3
FINISHED_REMEMBERED = 1024
DEAF_S = 15.0
NAK, PROGRESS = b"-NAK", b"+WPI"
SIZE_HEADER = "Nats-Msg-Size"
"""Brought by a delivery without its body."""

log = structlog.get_logger()


class NatsFeed:
    """A `Feed` over one durable consumer.

    Args:
        heard: the newest sequence that the consumer had given to anybody before.
    """

    def __init__(
        self,
        connection: Connection,
        entropy: Entropy,
        consumers: Consumers,
        subscription: Subscription,
        letters: NatsDeadLetters,
        *,
        window_s: float,
        heard: int,
        delivery_budget: int,
        slots: Slots,
    ) -> None:
        self._connection = connection
        self._clock = connection.clock
        self._consumers = consumers
        self._subscription = subscription
        self._letters = letters
        self._stream = stream_of(subscription.topic).name
        self._window_s = window_s
        self._margin_s = min(1.0, window_s / 10)
        self._budget = delivery_budget
        self._consumer = f"{self._stream}.{consumer_name(subscription)}"
        self._heard = heard
        self._pulls = Pulls(connection, entropy, self._consumer, self._on_delivery)
        self._stall = StallWatch(connection, consumers, subscription, self._pulls)
        self._hand: dict[int, Held] = {}
        self._arrived: deque[Delivery] = deque()
        self._finished: dict[Mark, None] = {}
        self._woken: set[int] = set()
        self._acks = Acks(connection, let_go=self._let_go, again=self._ack_again)
        self._prolonging: asyncio.Task[None] | None = None
        self.on_arrival: Callable[[], None] = lambda: None
        self.good_until = math.inf
        self._wonder_at = -math.inf
        self._is_odd = False
        self._is_closed = False
        self._log = log.bind(topic=subscription.topic, group=subscription.group)
        self._slots = slots
        self._slot: Slot = NoSlot()
        self._is_telling_due = False
        self._forget_listener: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Raises Unavailable when the broker cannot be asked."""
        try:
            await self._pulls.open()
        except (ClientError, OSError) as error:
            raise Unavailable(f"cannot attach to {self._subscription.topic}: {error!r}") from error
        self._forget_listener = self._connection.listen(self._on_state)
        if (slot := self._slots.take()) is not None:
            self._slot = slot
            self._tell_slot()
        else:
            self._log.warning("mail_slots_used_up")

    @property
    def in_hand(self) -> int:
        return len(self._hand)

    @property
    def pull_expiry_s(self) -> float:
        return PULL_EXPIRY_S

    async def take(self, count: int, wait_s: float) -> Sequence[Delivery]:
        if not self._arrived:
            await self._pulls.pull(count, wait_s)
            await self._wonder()
            if not self._arrived and not self._hand and not self._pulls.is_closing:
                await self._stall.look()
        if self._pulls.is_closing:
            return ()
        return [self._arrived.popleft() for _ in range(min(count, len(self._arrived)))]

    async def _wonder(self) -> None:
        """Refused for longer than an election lasts, or given what no consumer of ours gives, or linked anew: find out
        whether what we pull from is there, and as we made it. A seat that waits asks nothing by itself."""
        now = self._clock.elapsed()
        is_deaf = self._pulls.deaf_s >= DEAF_S and now >= self._wonder_at
        if (is_deaf or self._is_odd) and not self._pulls.is_closing:
            self._wonder_at, self._is_odd = now + DEAF_S, False
            await self._consumers.look_after(self._subscription)

    def leftovers(self) -> Sequence[Delivery]:
        left, self._arrived = list(self._arrived), deque()
        return left

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for one in self._stop_prolonging(deliveries):
            self._remember_finished(one.mark)
            # With more in hand than that, another ack follows.
            self._acks.send(one, is_last=len(self._hand) <= self._acks.count + 1)

    async def _ack_again(self, held: Held) -> None:
        ends = self._clock.elapsed() + SETTLE_BUDGET_S
        await self._clock.sleep(SETTLE_PAUSE_S)
        if not await self._say(held, ACK, ends=ends, is_repeat=True):
            self._log.warning("mail_ack_unconfirmed", ids=[held.delivery.id])
        self._let_go(held)

    async def give_back(self, deliveries: Sequence[Delivery], delay_s: float) -> None:
        word = NAK if delay_s <= 0 else NAK + b" " + json.dumps({"delay": round(delay_s * NS)}).encode()
        ends = self._clock.elapsed() + SETTLE_BUDGET_S
        for one in self._stop_prolonging(deliveries):
            one.is_given_back = True
            self._tell_slot()
            if not await self._say(one, word, ends=ends):
                self._log.warning("mail_hand_back_unconfirmed", ids=[one.delivery.id])
            self._let_go(one)

    async def give_back_late(self, deliveries: Sequence[Delivery]) -> None:
        is_answering = True
        kept: list[str] = []
        for one in self._stop_prolonging(deliveries):
            is_back = False
            if is_answering and self._is_surely_ours(one):
                one.is_given_back = True
                self._tell_slot()
                is_back = is_answering = await self._say(one, NAK)
            if not is_back:
                kept.append(one.delivery.id)
            self._let_go(one)
        if kept:
            self._log.warning("mail_hand_back_unconfirmed", ids=kept)

    async def bury(self, delivery: Delivery, reason: str, history: Sequence[Handling]) -> bool:
        held = self._held(delivery)
        if held is None:
            return False
        await self._letters.bury(self._subscription, delivery, held.headers, reason, history)
        return True

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if (held := self._held(delivery)) is not None:
                self._let_go(held)

    def prolong(self) -> None:
        self._tell_slot()
        self._prove_acks()
        if self._prolonging is None or self._prolonging.done():
            self._prolonging = asyncio.create_task(self._prolong(), name=f"prolong {self._subscription.group}")

    def _on_state(self, state: str) -> None:
        if state == "connected":
            self._is_odd = True
            self._prove_acks()

    def _prove_acks(self) -> None:
        if not self._pulls.is_closing and self._clock.elapsed() < self.good_until:
            self._acks.prove()

    def stop(self) -> None:
        self._pulls.stop()

    async def close(self) -> None:
        self._pulls.stop()
        if self._clock.elapsed() < self.good_until:
            self._acks.prove()
        else:
            self._acks.trust()
        wake = await self._wake() if self._pulls.unanswered else None
        await self._pulls.all_answered()
        await self._acks.settled()
        self._forget_listener()
        known, told = set(self._hand), None
        if self._pulls.doubt_s is not None:
            told = await self._dispel_doubt(self._pulls.doubt_s)
        await self._pulls.close()
        if told is not None:
            await self._bring_back(told, known | set(self._hand), wake)
        self._is_closed = True
        self._tell_slot()
        if wake is not None and wake not in self._woken:
            await self._remove(wake)

    def _on_delivery(self, reply: str, data: bytes, headers: dict[str, str], sent_at: float) -> None:
        self._stall.heard()
        place = parse_place(reply)
        sequence, published_at = place.sequence, place.published_at
        self._heard = max(self._heard, sequence)
        if WAKE_HEADER in headers:
            self._woken.add(sequence)
        if WAKE_HEADER in headers or (sequence, published_at) in self._finished:
            with contextlib.suppress(ClientError, OSError):
                self._connection.client.send(reply, "", ACK)
            return
        if not data and SIZE_HEADER in headers:
            # Somebody had the broker deliver no bodies: unsettled, it comes again, whole once that is mended.
            self._is_odd = True
            return
        window_ends = sent_at + self._window_s
        held = self._hand.get(sequence)
        if held is not None and held.delivery.published_at == published_at and not held.is_given_back:
            # Its window ran out while it was in hand: the same work, under a new name for settling it.
            held.reply, held.window_ends = reply, window_ends
            self._tell_slot_soon()
            return
        delivery = Delivery(
            id=headers.get(ID_HEADER) or headers.get("Nats-Msg-Id") or f"{self._stream}-{sequence}",
            data=data,
            sequence=sequence,
            deliveries=place.deliveries,
            deliveries_left=max(0, self._budget - place.deliveries),
            published_at=published_at,
        )
        self._hand[sequence] = Held(delivery, reply, headers, window_ends)
        self._tell_slot_soon()
        self._arrived.append(delivery)
        self.on_arrival()

    def _held(self, delivery: Delivery) -> Held | None:
        """What is in hand of this very delivery: a stream that was made anew gives its sequences out again."""
        held = self._hand.get(delivery.sequence)
        return held if held is not None and held.delivery is delivery else None

    def _let_go(self, held: Held) -> None:
        if self._hand.get(held.delivery.sequence) is held:
            del self._hand[held.delivery.sequence]
            self._tell_slot_soon()
            if len(self._hand) <= self._acks.count:
                self._prove_acks()  # no other ack follows

    def _tell_slot_soon(self) -> None:
        """Once for all that changes in this step of the loop."""
        if not self._is_telling_due:
            self._is_telling_due = True
            asyncio.get_running_loop().call_soon(self._tell_slot)

    def _tell_slot(self) -> None:
        """What is in hand, but for what is on its way back: that comes again when the broker was told. And how far this
        process has heard the consumer: what the broker sends beyond that as this process dies was never in hand."""
        self._is_telling_due = False
        if self._is_closed and not self._hand:
            self._slot.close()
            return
        held = [each for each in self._hand.values() if not each.is_given_back]
        told = [(each.reply, each.window_ends - self._margin_s) for each in held]
        if not self._is_closed:
            told.insert(0, (f"HEARD.{self._consumer}.{self._heard}", self.good_until))
        self._slot.write(told)

    def _stop_prolonging(self, deliveries: Sequence[Delivery]) -> list[Held]:
        held = [one for delivery in deliveries if (one := self._held(delivery)) is not None]
        for one in held:
            one.is_prolonged = False
        return held

    def _is_surely_ours(self, held: Held) -> bool:
        """Whether what is said now of a delivery comes to the broker before it can hand the message to anybody else."""
        return self._clock.elapsed() < held.window_ends - self._margin_s

    async def _say(self, held: Held, word: bytes, *, ends: float = 0.0, is_repeat: bool = False) -> bool:
        """Settle by request, so that the answer proves it; again until `ends`, while nobody answers.

        What was said may have landed, and then the message may be with a successor. So nothing is repeated past the
        lease, and nothing but an ack is said past the delivery's own window.
        """
        while word == ACK or self._is_surely_ours(held):
            if is_repeat and (self._pulls.is_closing or self._clock.elapsed() >= min(ends, self.good_until)):
                break
            try:
                await self._connection.request(held.reply, word, timeout_s=SETTLE_TIMEOUT_S)
                return True
            except NotLive:
                break
            except Unavailable:
                is_repeat = True
            await self._clock.sleep(SETTLE_PAUSE_S)
        return False

    async def _prolong(self) -> None:
        await asyncio.gather(*(self._extend(one) for one in list(self._hand.values())))

    async def _extend(self, held: Held) -> None:
        """One extension. It counts when it was answered while the old window ran: a later one may have met its end."""
        sent_at, reply = self._clock.elapsed(), held.reply
        if not held.is_prolonged or self._pulls.is_closing or sent_at >= self.good_until:
            return
        try:
            await self._connection.request(reply, PROGRESS, timeout_s=min(SETTLE_TIMEOUT_S, self._window_s / 4))
        except (NotLive, Unavailable):
            return
        if held.reply == reply and self._clock.elapsed() < held.window_ends:
            held.window_ends = max(held.window_ends, sent_at + self._window_s)
            self._tell_slot_soon()

    def _remember_finished(self, mark: Mark) -> None:
        self._finished[mark] = None
        if len(self._finished) > FINISHED_REMEMBERED:
            del self._finished[next(iter(self._finished))]

    async def _wake(self) -> int | None:
        """Have the open pull answered at once; where this fails the pull's own expiry answers it."""
        try:
            published = await publish_raw(
                self._connection, self._subscription.topic, b"", {WAKE_HEADER: "1"}, budget_s=0.0
            )
        except CrewletError as error:
            self._log.debug("wake_failed", error=repr(error))
            return None
        return published.sequence

    async def _dispel_doubt(self, longest_s: float) -> Reply | None:
        """A pull got no answer: either no pull is open on the consumer, or every one of ours has expired since.

        An answer from the consumer's leader comes after it took in whatever this connection sent before.

        Returns:
            The last answer; None where the consumer, or its stream, is gone.
        """
        info: Reply | None = None
        try:
            info = await self._ask_info()
            has_pulls = info is not None and int(info["num_waiting"]) > 0
        except StreamGone:
            has_pulls = True  # surely not; but the one who says so need not be the consumer's leader
        if has_pulls:
            await self._clock.sleep(min(longest_s, PULL_EXPIRY_S) + PROOF_MARGIN_S)
            with suppress(StreamGone):
                info = await self._ask_info()
        self._pulls.doubt_s = None
        return info

    async def _bring_back(self, told: Reply, known: set[int], wake: int | None) -> None:
        """What the consumer sent and nobody here heard, as when the connection broke: it would be dark for a window.

        What lies beyond all that was heard was sent under this lease, which still keeps other readers away. What came
        here before, and was lost on its way here again, cannot be told from what an earlier reader has in hand.

        Args:
            known: the sequences in hand as the consumer was asked, or since.
            wake: one that is a wake message of this attachment, and goes by itself.
        """
        newest, missing = int(told["delivered"]["stream_seq"]), int(told["num_ack_pending"]) - len(known)
        if wake is not None and wake not in self._woken and self._heard < wake <= newest:
            missing -= 1
        given = 0
        left_s = self.good_until - self._clock.elapsed()
        if missing > 0 and left_s > 0:
            name = consumer_name(self._subscription)
            left = Left(self._subscription, name, self._heard, newest, int(told["delivered"]["consumer_seq"]))
            try:
                given = await give_back(self._connection, [left], budget_s=min(PROOF_BUDGET_S, left_s))
            except CrewletError as error:
                self._log.debug("mail_not_brought_back", error=repr(error))
        if given:
            self._log.info("unheard_mail_given_back", messages=given)
        if missing > given:
            self._log.warning("unheard_mail_left", messages=missing - given, comes_back_within_s=self._window_s)

    async def _ask_info(self) -> Reply | None:
        try:
            return await self._consumers.info(self._subscription, budget_s=PROOF_BUDGET_S)
        except StreamGone:
            raise
        except Unavailable as error:
            raise DetachUnproven(
                f"the broker did not confirm that no pull of {self._subscription.topic} is open"
            ) from error

    async def _remove(self, sequence: int) -> None:
        """Another message answered the pull: take the wake out, so that it does not lie in the inbox."""
        try:
            await remove_message(
                self._connection, self._stream, sequence, lambda found: WAKE_HEADER in found.headers, budget_s=0.0
            )
        except CrewletError as error:
            self._log.debug("wake_left", sequence=sequence, error=repr(error))
