"""One mail kills its node on every delivery, beside nine that would harm nobody: in virtual time, to the end.

Whatever the ten had used up before, and however what was in a dead node's hand comes back, only the one that kills is
dead-lettered; the others are worked once each, and in order inside their conversations.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.batching import nak_delay_s
from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.ports.mail import Ack, Attachment, BatchOptions, Delivery, Nak, Outcome, Settling, Subscription
from crewlet.testing.contracts.mailworld import key
from crewlet.testing.twins.mail import TwinBroker, TwinMail
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

INBOX = Subscription("crewlet.agent.alice.inbox", "agent-alice")
BUDGET, WINDOW_S = 25, 30.0
MAIL = ["a:1", "b:1", "a:2", "c:1", "b:2", "a:3", "d:1", "a:4", "b:3"]
POISON = "a:poison"


def dated(delivery: Delivery) -> datetime:
    """As published, but for one conversation that goes before all others."""
    return datetime(2020, 1, 1, tzinfo=UTC) if delivery.id.startswith("d") else delivery.published_at


class Fleet:
    """Nodes in a row at one inbox; each that is handed the poison dies of it, with what it has in hand.

    Work that has ended is settled half a second later, unless its node has died by then.

    Args:
        has_parents: a dead node's mail goes back at once after a first delivery, and later on the nak schedule; without
            parents it comes back at the end of its window.
        linger_s: how long a batch waits for more.

    Attributes:
        worked: what was worked to its end and settled.
        runs: how often each was begun.
        costs: how many deliveries it had cost each to be settled.
        beside: how much a node had in hand beside the poison as it died, but for the poison's first two deliveries.
    """

    def __init__(self, *, has_parents: bool, linger_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.broker = TwinBroker(self.clock, ack_window_s=WINDOW_S, delivery_budget=BUDGET, pull_expiry_s=60.0)
        self.has_parents = has_parents
        self.linger_s = linger_s
        self.outage = 0
        self.worked: list[str] = []
        self.runs: Counter[str] = Counter()
        self.costs: Counter[str] = Counter()
        self.beside: set[int] = set()
        self.attachment: Attachment | None = None
        self.in_hand: dict[int, Delivery] = {}
        self.died = asyncio.Event()

    async def open(self, mail: Sequence[str]) -> "Fleet":
        self.cells = await LocalCells(self.clock).open(DELIVERIES_BUCKET)
        self.outside = TwinMail(self.broker)
        await self.outside.start()
        await self.outside.ensure_subscription(INBOX)
        await self.send(mail)
        return self

    async def send(self, mail: Sequence[str]) -> None:
        for each in mail:
            await self.outside.publish(INBOX.topic, each.encode(), message_id=each)

    def use_up(self, deliveries: int, among: int) -> None:
        """So many deliveries of each are lost without a word."""
        for _ in range(deliveries):
            for message, _ in self.broker.open_pull(INBOX, among, 0.0).got:
                self.broker.nak(INBOX, message.sequence, 0.0)

    @property
    def buried(self) -> list[str]:
        return [letter.headers["Crewlet-Message-Id"] for letter in self.broker.dead_letters]

    async def live(self, letters: int = 1) -> None:
        """Nodes come and die until so many letters are written and the inbox is empty."""
        for number in count():
            mail = TwinMail(self.broker)
            await mail.start()
            journal = Journal(self.cells, f"n{number}:a", self.clock)
            options = BatchOptions(10, self.linger_s, partition_key=self._key, dated=dated)
            self.in_hand.clear()
            self.died.clear()
            self.attachment = await mail.attach(
                INBOX, self._work, good_until=math.inf, options=options, journal=journal
            )
            await until(lambda: self.died.is_set() or self._is_over(letters), within_s=600.0, step_s=0.25)
            if not self.died.is_set():
                return
            self.attachment.disown()
            for sequence, delivery in sorted(self.in_hand.items() if self.has_parents else ()):
                delay_s = 0.0 if delivery.deliveries == 1 else nak_delay_s(delivery.deliveries)
                self.broker.nak(INBOX, sequence, delay_s)

    def _is_over(self, letters: int) -> bool:
        return len(self.buried) >= letters and not self.broker.retained(INBOX.topic)

    def _key(self, delivery: Delivery) -> str:
        self.in_hand[delivery.sequence] = delivery
        return key(delivery)

    async def _work(self, deliveries: Sequence[Delivery]) -> Outcome | Settling:
        ids = [delivery.id for delivery in deliveries]
        if self.outage:
            self.outage -= 1
            for delivery in deliveries:
                del self.in_hand[delivery.sequence]
            return Nak("the model does not answer")
        self.runs.update(ids)
        if POISON in ids:
            assert self.attachment is not None
            if next(each for each in deliveries if each.id == POISON).deliveries > 2:
                self.beside.add(self.attachment.in_hand - 1)
            self.died.set()
            await asyncio.Event().wait()
        settling: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.5, self._settle, deliveries, settling, self.attachment)
        return Settling(settling)

    def _settle(
        self, deliveries: Sequence[Delivery], settling: "asyncio.Future[Outcome]", by: Attachment | None
    ) -> None:
        if by is not self.attachment or self.died.is_set():
            return
        for delivery in deliveries:
            del self.in_hand[delivery.sequence]
            self.worked.append(delivery.id)
            self.costs[delivery.id] = delivery.deliveries
        settling.set_result(Ack())


def check(fleet: Fleet, used_up: int) -> None:
    assert fleet.buried == [POISON]
    assert fleet.runs[POISON] == BUDGET - used_up, "it has all of its own deliveries"
    assert sorted(fleet.worked) == sorted(MAIL), "each is worked to its end once"
    assert max(fleet.costs.values()) <= used_up + 4
    assert fleet.beside == {0}
    for conversation in "abcd":
        mine = [each for each in fleet.worked if each.startswith(conversation)]
        assert mine == sorted(mine)


def beside(place: int) -> list[str]:
    return [*MAIL[:place], POISON, *MAIL[place:]]


@pytest.mark.proves("BA-05", "QU-03")
@pytest.mark.parametrize("has_parents", [True, False], ids=["parents", "windows"])
@pytest.mark.parametrize("used_up", [0, 2, 11, 12, 24])
def test_what_kills_its_node_is_dead_lettered_alone_whatever_it_and_its_neighbours_have_used_up(
    used_up: int, has_parents: bool
) -> None:
    @in_virtual_time
    async def case(place: int) -> None:
        fleet = await Fleet(has_parents=has_parents).open(beside(place))
        fleet.use_up(used_up, len(MAIL) + 1)
        await fleet.live()
        check(fleet, used_up)

    for place in (0, 4):
        case(place)


@pytest.mark.parametrize("failures", [3, 12, 23])
def test_what_failed_with_a_reason_for_long_is_spared_as_well(failures: int) -> None:
    @in_virtual_time
    async def case() -> None:
        fleet = await Fleet(has_parents=True).open(beside(0))
        fleet.outage = 4 * failures  # four conversations; from half of the budget on each mail by itself
        if failures > 12:
            fleet.outage = 4 * 12 + 10 * (failures - 12)
        await fleet.live()
        assert fleet.buried == [POISON]
        assert sorted(fleet.worked) == sorted(MAIL)

    case()


@pytest.mark.parametrize("linger_s", [0.0, 5.0])
def test_mail_that_comes_while_nodes_die_is_spared_and_none_of_it_is_worked_beside_what_kills(linger_s: float) -> None:
    @in_virtual_time
    async def case() -> None:
        fleet = await Fleet(has_parents=True, linger_s=linger_s).open(beside(2))
        more = [f"{conversation}:{number}" for number in range(5, 155) for conversation in "abcd"]

        async def keep_sending() -> None:
            for each in more:
                await fleet.clock.sleep(0.7)
                await fleet.send([each])

        sending = asyncio.create_task(keep_sending())
        await fleet.live()
        await sending
        await until(lambda: len(fleet.worked) == len(MAIL) + len(more), within_s=60.0, step_s=0.25)
        assert fleet.buried == [POISON]
        assert len(set(fleet.worked)) == len(fleet.worked)
        assert max(fleet.costs.values()) <= 5 and fleet.beside == {0}

    case()


@in_virtual_time
async def test_two_that_may_kill_in_one_batch_are_worked_once_each_and_neither_beside_the_other() -> None:
    fleet = await Fleet(has_parents=True).open(["d:1", "a:1", "b:1"])
    broker = fleet.broker
    broker.open_pull(INBOX, 3, 0.0)
    broker.nak(INBOX, 2, 0.0)
    broker.nak(INBOX, 3, 0.0)
    broker.open_pull(INBOX, 2, 0.0)
    for sequence in (1, 2, 3):
        broker.nak(INBOX, sequence, 0.0)
    await fleet.live(letters=0)
    assert fleet.runs == Counter(["d:1", "a:1", "b:1"]) and fleet.worked == ["d:1", "a:1", "b:1"]
    assert fleet.costs == {"d:1": 2, "a:1": 3, "b:1": 4}
