"""The loop that turns a feed of deliveries into handler calls and outcomes into settlements.

Decides when to fetch (holds, quiesce, pause, the lease's deadline), what a handler sees, and what its answer means. It
leaves the wire to a `Feed`.
"""

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from functools import partial
from typing import Any

import structlog

from crewlet.mail.batching import (
    MAX_BATCH_MESSAGES,
    NAK_CAP_S,
    UNEXPLAINED_DELIVERIES,
    Partition,
    clamped,
    in_stream_order,
    is_worn,
    nak_delay_s,
    partitions,
)
from crewlet.mail.feed import Feed
from crewlet.mail.readernotes import ReaderNotes, last_word
from crewlet.mail.switchboard import Switchboard
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeliveryJournal
from crewlet.ports.errors import CrewletError
from crewlet.ports.mail import (
    Ack,
    Answer,
    BatchOptions,
    Bury,
    Defer,
    Delivery,
    Handler,
    Nak,
    Outcome,
    Settling,
    Subscription,
)

BROKEN_PASS_PAUSE_S = 1.0
NOT_BEGUN = "not begun: its reader had stopped taking mail"

log = structlog.get_logger()


class Consumer:
    """An attachment over any feed; see `crewlet.ports.mail.Attachment` for the promises."""

    def __init__(
        self,
        subscription: Subscription,
        feed: Feed,
        handler: Handler,
        *,
        switchboard: Switchboard,
        clock: Clock,
        good_until: float,
        holds: Collection[str] = (),
        options: BatchOptions | None = None,
        journal: DeliveryJournal | None = None,
        delivery_budget: int,
    ) -> None:
        self._subscription = subscription
        self._feed = feed
        feed.on_arrival = self.look_again
        feed.good_until = good_until
        self._handler = handler
        self._switchboard = switchboard
        self._clock = clock
        self._good_until = good_until
        self._holds = dict.fromkeys(holds)
        self._options = clamped(options)
        self._budget = delivery_budget
        self._notes = ReaderNotes(subscription, journal)
        self._is_quiesced = False
        self._is_closing = False
        self._is_detached = False
        self._is_disowned = False
        self._waiting: list[Delivery] = []
        self._suspects: set[int] = set()
        self._room = MAX_BATCH_MESSAGES
        self._has_failed = False
        self._handling = 0
        self._settling: dict[asyncio.Future[Any], None] = {}
        self._changed = asyncio.Event()
        self._settled_down = asyncio.Event()
        self._detaching = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None
        self._log = log.bind(topic=subscription.topic, group=subscription.group)

    def start(self) -> None:
        """Begin to fetch. Called once, by the mail instance that made this attachment."""
        self._switchboard.attachments[id(self)] = self
        self._loop = asyncio.create_task(self._run(), name=f"mail {self._subscription.group}")

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    @property
    def is_quiesced(self) -> bool:
        return self._is_quiesced

    @property
    def holds(self) -> Collection[str]:
        return tuple(self._holds)

    @property
    def in_hand(self) -> int:
        return self._feed.in_hand

    @property
    def is_handling(self) -> bool:
        return self._handling > 0

    def prolong(self, good_until: float) -> None:
        self._switchboard.require_live()
        if self._is_closing:
            return
        self._good_until = self._feed.good_until = good_until
        self._feed.prolong()
        self.look_again()

    def quiesce(self) -> bool:
        self._switchboard.require_live()
        was_fetching = not self._is_quiesced and not self._is_closing
        if was_fetching:
            self._is_quiesced = True
        return was_fetching

    def unquiesce(self) -> bool:
        self._switchboard.require_live()
        was_quiesced = self._is_quiesced and not self._is_closing
        if was_quiesced:
            self._is_quiesced = False
            self.look_again()
        return was_quiesced

    def hold(self, name: str) -> None:
        self._switchboard.require_live()
        self._holds[name] = None

    def unhold(self, name: str) -> None:
        self._switchboard.require_live()
        self._holds.pop(name, None)
        self.look_again()

    def reconfigure(self, options: BatchOptions) -> None:
        self._switchboard.require_live()
        self._options = clamped(options)

    def disown(self) -> None:
        self._is_disowned = True

    async def detach(self) -> bool:
        self._switchboard.require_live()
        return await self.let_go()

    async def let_go(self) -> bool:
        """`detach` without asking whether the mail instance lives: its own stop uses it."""
        async with self._detaching:
            if self._is_detached:
                return False
            self._is_closing = True
            self._feed.stop()
            self.look_again()
            if not self.is_handling:
                await self._until_settled_down()
            try:
                await self._feed.close()
            finally:
                # Only now: while a pull of ours was open, what goes back would have come straight to it.
                await self._feed.give_back_late(in_stream_order([*self._drop_waiting(), *self._feed.leftovers()]))
            self._is_detached = True
            self._switchboard.attachments.pop(id(self), None)
            return True

    def look_again(self) -> None:
        """Something that gates fetching changed."""
        self._changed.set()

    def _is_open(self) -> bool:
        return not (
            self._is_closing
            or self._is_quiesced
            or self._holds
            or self._switchboard.is_paused
            or self._clock.elapsed() >= self._good_until
        )

    async def _until_settled_down(self) -> None:
        """Wait until the loop has ended, or is in a handler again: what it was settling is settled or given up."""
        if self._loop is not None:
            await self._settled_down.wait()

    async def _run(self) -> None:
        try:
            while not self._is_closing:
                self._changed.clear()
                if not self._is_open():
                    # A pull that was open when the gate closed, or was thought lost, may still bring something.
                    await self._hand_back(())
                    if not self._changed.is_set():
                        await self._changed.wait()
                    continue
                try:
                    await self._pass()
                except Exception:  # noqa: BLE001 - a loop that ended would leave a seat deaf
                    self._log.exception("mail_pass_broke")
                    await self._clock.sleep(BROKEN_PASS_PAUSE_S)
        finally:
            self._settled_down.set()

    async def _pass(self) -> None:
        options = self._options
        self._has_failed = False
        await self._collect(options)
        if not self._is_open():
            await self._hand_back(())
            return
        if self._waiting:
            await self._work_off(options)
        await self._all_settled()
        if self._waiting:
            await self._hand_back(())
        if self._is_open():
            self._room = min(2 * self._room, MAX_BATCH_MESSAGES)

    async def _work_off(self, options: BatchOptions) -> None:
        """Handle what was taken, for as long as the gates allow it."""
        batch, self._waiting = self._waiting, []
        self._waiting = [delivery for delivery in batch if delivery.deliveries <= self._budget]
        for delivery in batch:
            if delivery.deliveries > self._budget:
                await self._or_forget([delivery], self._bury(delivery, f"its {self._budget} deliveries are used up"))
        alone = self._suspects.union(each.sequence for each in self._waiting if is_worn(each))
        taken = partitions(self._waiting, options, alone)
        if options.preview is not None and len(taken) > 1:
            options.preview(self._waiting)
        for partition in taken:
            if partition[0].sequence in self._suspects and partition[0] in self._waiting:
                await self._empty_hand_but_for(partition)
            if again := [each for each in partition if each.deliveries > 1]:
                await self._notes.taken(again)
            rest = partition
            while rest and self._begin(rest):
                rest = await self._handle(rest)
            if rest:
                break

    async def _collect(self, options: BatchOptions) -> None:
        """Fill `_waiting`: a pull of one that waits, then what lies ready, then what comes while lingering.

        Nothing more is taken beside what may kill this process: each delivery in hand would be lost with it. Where what
        failed stops the inbox again and again, as mail does that its agent dies of, a pass takes one, and twice as many
        with each pass that goes well.
        """
        if not self._waiting:
            self._suspects.clear()
            await self._take(1, self._pull_wait_s(self._feed.pull_expiry_s))
        if not self._waiting:
            return
        linger_ends = self._clock.elapsed() + options.linger_s
        while self._may_take_more(options):
            await self._take(min(options.max_messages, self._room) - len(self._waiting), 0.0)
            left = linger_ends - self._clock.elapsed()
            if left <= 0 or not self._may_take_more(options):
                return
            await self._take(1, self._pull_wait_s(min(self._feed.pull_expiry_s, left)))

    def _may_take_more(self, options: BatchOptions) -> bool:
        most = min(options.max_messages, self._room)
        return not self._suspects and len(self._waiting) < most and self._is_open()

    async def _take(self, count: int, wait_s: float) -> None:
        taken = await self._feed.take(count, wait_s)
        self._waiting.extend(taken)
        if again := [each for each in taken if each.deliveries > UNEXPLAINED_DELIVERIES]:
            may = await asyncio.gather(*(self._notes.may_kill(each) for each in again))
            self._suspects.update(each.sequence for each, may_kill_us in zip(again, may, strict=True) if may_kill_us)

    async def _empty_hand_but_for(self, partition: Partition) -> None:
        """What may kill this process is worked when everything else is settled or has gone back, at the head."""
        await self._all_settled()
        self._waiting = [each for each in self._waiting if each not in partition]
        try:
            await self._hand_back((), why="")
        finally:
            self._waiting.extend(partition)

    def _pull_wait_s(self, wanted_s: float) -> float:
        return max(0.001, min(wanted_s, self._good_until - self._clock.elapsed()))

    def _begin(self, partition: Partition) -> bool:
        """Move a partition from waiting to handled, if it still waits and the gates allow it. No other task runs in
        between."""
        if not self._is_open() or partition[0] not in self._waiting:
            return False
        for delivery in partition:
            self._waiting.remove(delivery)
        return True

    def _drop_waiting(self) -> list[Delivery]:
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _hand_back(self, begun: Collection[Delivery], *, why: str = NOT_BEGUN) -> None:
        """Everything not finished goes back at once, in stream order, so that the inbox looks as it did before.

        Args:
            why: what is noted of mail that came back before and was not begun; "" notes nothing.
        """
        if self._is_closing:
            self._waiting.extend(begun)  # the detach hands it back, after its pulls are closed
            return
        back = in_stream_order([*begun, *self._drop_waiting(), *self._feed.leftovers()])
        if not back:
            return
        if self._has_failed and any(each.deliveries > UNEXPLAINED_DELIVERIES for each in back):
            # What failed stopped the inbox as well, and not for the first time: what is taken beside it pays for it.
            self._room = 1
        if self._clock.elapsed() >= self._good_until:
            await self._or_forget(back, self._feed.give_back_late(back))
        else:
            await self._or_forget(back, self._feed.give_back(back, 0.0))
            if why:
                await self._notes.returned([each for each in back if each.deliveries > 1 and each not in begun], why)

    async def _handle(self, partition: Partition) -> Partition:
        """Run the handler, and settle what it answers, at once or when it comes to know.

        Returns what the handler has to be asked about once more: it waits again.
        """
        self._switchboard.handler_began()
        self._handling += 1
        self._settled_down.set()
        answer = await self._answer(partition, self._handler(partition))
        if isinstance(answer, Settling):
            self._settling[answer.outcome] = None
            answer.outcome.add_done_callback(partial(self._on_outcome, partition))
            return ()
        if isinstance(answer, Bury):
            return await self._bury_begun(partition, answer, is_late=self._end_handling())
        if not isinstance(answer, Ack):
            # What was handled before is settled before this goes back, or goes back with it.
            await self._all_settled()
        await self._settle(partition, answer, is_late=self._end_handling())
        return ()

    async def _bury_begun(self, partition: Partition, answer: Bury, *, is_late: bool) -> Partition:
        if is_late or not self._is_ours():
            await self._settle(partition, Nak(answer.reason), is_late=is_late)
            return ()
        rest = tuple(each for each in partition if each != answer.delivery)
        self._waiting.extend(rest)
        await self._or_forget([answer.delivery], self._bury(answer.delivery, answer.reason))
        return rest

    async def _answer(self, partition: Partition, handling: Awaitable[Answer]) -> Answer:
        try:
            answer = await handling
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._end_handling()
                raise
            answer = Nak("the handler was cancelled")
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is one answer: not now
            self._log.exception("handler_failed", ids=[delivery.id for delivery in partition])
            answer = Nak(f"{type(error).__name__}: {error}")
        if isinstance(answer, Defer):
            # In the same step as the handler's return, so that an unquiesce that follows it is never undone.
            self._is_quiesced = True
        return answer

    def _on_outcome(self, partition: Partition, known: "asyncio.Future[Outcome]") -> None:
        """A handler that had ended its work knows the outcome."""
        del self._settling[known]
        outcome = self._outcome_in(partition, known)
        is_late = self._end_handling()
        if isinstance(outcome, Ack) and not is_late:
            self._feed.ack(partition)
            return
        if isinstance(outcome, Defer) and not is_late:
            # It goes back with the rest of its batch, in stream order.
            self._is_quiesced = True
            self._waiting.extend(partition)
            rest = self._note_deferred(partition, outcome.reason)
        else:
            rest = self._settle(partition, outcome, is_late=is_late)
        settling = asyncio.ensure_future(rest)
        self._settling[settling] = None
        settling.add_done_callback(self._settling.pop)

    def _outcome_in(self, partition: Partition, known: "asyncio.Future[Outcome]") -> Outcome:
        if known.cancelled():
            return Nak("the settling was cancelled")
        if (error := known.exception()) is not None:
            self._log.error("handler_failed", ids=[delivery.id for delivery in partition], exc_info=error)
            return Nak(f"{type(error).__name__}: {error}")
        return known.result()

    async def _all_settled(self) -> None:
        while self._settling:
            await asyncio.wait(list(self._settling))

    def _end_handling(self) -> bool:
        """A handler has answered for good; whether the attachment was detached before that."""
        self._handling -= 1
        if not self._handling:
            self._settled_down.clear()
        self._switchboard.handler_ended()
        return self._is_closing

    async def _settle(self, partition: Partition, outcome: Outcome, *, is_late: bool) -> None:
        settling = self._settle_late(partition, outcome) if is_late else self._settle_now(partition, outcome)
        await self._or_forget(partition, settling)

    async def _or_forget(self, deliveries: Sequence[Delivery], settling: Awaitable[None]) -> None:
        """Settle deliveries. For a defect they are let go of, so that nothing prolongs them for ever, and what comes of
        them when their windows end counts as new."""
        try:
            await settling
        except Exception:  # noqa: BLE001 - a loop that ended would leave a seat deaf
            self._log.exception("mail_settling_broke", ids=[delivery.id for delivery in deliveries])
            self._feed.forget(deliveries)

    async def _settle_now(self, partition: Partition, outcome: Outcome) -> None:
        match outcome:
            case Ack():
                self._feed.ack(partition)
            case Nak(reason=reason):
                self._has_failed = True
                self._log.info("delivery_naked", ids=[delivery.id for delivery in partition], reason=reason)
                if self._is_ours():
                    await self._notes.returned(partition, reason)
                for delivery in partition:
                    await self._nak(delivery, reason)
            case Defer(reason=reason):
                await self._hand_back(partition)
                # After it: a hand-over waits for nothing.
                await self._note_deferred(partition, reason)

    async def _nak(self, delivery: Delivery, reason: str) -> None:
        # Past the lease's deadline only a hand-back inside the delivery's own window is still ours to make.
        if not self._is_ours():
            await self._feed.give_back_late([delivery])
        elif delivery.deliveries_left == 0:
            await self._bury(delivery, reason or "its last delivery was handed back")
        else:
            await self._feed.give_back([delivery], nak_delay_s(delivery.deliveries))

    def _is_ours(self) -> bool:
        return not self._is_closing and self._clock.elapsed() < self._good_until

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        """Acked only once the letter is confirmed; it goes back where that fails."""
        history = await self._notes.history(delivery)
        if delivery.deliveries > self._budget:
            # Nobody worked this one; why the mail came back is what a reader before said, if the last of them did.
            last = last_word(history, delivery) or "its reader did not say why, or died with it"
            reason = f"{reason}; the last: {last}"
        try:
            if not await self._feed.bury(delivery, reason, history):
                return
        except CrewletError as error:
            self._log.error("dead_letter_failed", id=delivery.id, deliveries=delivery.deliveries, error=repr(error))
            await self._feed.give_back([delivery], NAK_CAP_S)
            self._switchboard.burial_ended(is_buried=False)
            return
        self._log.error("delivery_dead_lettered", id=delivery.id, deliveries=delivery.deliveries, reason=reason)
        self._feed.ack([delivery])
        self._switchboard.burial_ended(is_buried=True)

    async def _note_deferred(self, partition: Partition, reason: str) -> None:
        """The first deferral of a message is not worth a note."""
        self._log.info("delivery_deferred", ids=[delivery.id for delivery in partition], reason=reason)
        await self._notes.returned([each for each in partition if each.deliveries > 1], reason)

    async def _settle_late(self, partition: Partition, outcome: Outcome) -> None:
        """Detached while the handler ran: its mail belongs to the next attachment, which must not feel this one."""
        self._log.info(
            "late_outcome_dropped", ids=[delivery.id for delivery in partition], outcome=type(outcome).__name__
        )
        if isinstance(outcome, Ack) or self._is_disowned:
            self._feed.forget(partition)
        else:
            await self._feed.give_back_late(in_stream_order(partition))
