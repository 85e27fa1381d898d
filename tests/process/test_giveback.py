"""What a dead node's parent gives back of it, on a real broker: its mail in stream order, its leases, and the news."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.nats.signals import NatsSignals
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.mail.batching import nak_delay_s
from crewlet.mail.mailboxes import Mailboxes
from crewlet.node import freednews
from crewlet.ports.cells import Done
from crewlet.ports.mail import Ack, BatchOptions, Delivery, Outcome, Subscription
from crewlet.seats import news
from crewlet.seats.dutyleases import DUTIES_BUCKET, DutyLeases
from crewlet.seats.lease import Granted
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.seats.records import LeaseRecord, encode, key_of
from crewlet.supervisor import giveback
from crewlet.supervisor.giveback import GiveBack, Target
from crewlet.supervisor.natswire import connected
from crewlet.supervisor.page import Page, PageSlots, boottime
from crewlet.supervisor.remains import LEASES, Heard, Held, InHand, in_page
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

TTL_S = 45.0
DEAD, ALIVE = "n1:dead", "n1:alive"
BOUND_S = 30.0
DIGIT_S = 0.001
"""The last digit of an instant in the page."""
ELECTING = b'{"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with one_server(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def page() -> Generator[Page]:
    made = Page.create()
    made.write_owner(DEAD)
    yield made
    made.close()


class Side:
    """One incarnation's connection, and what it does over it."""

    def __init__(self, connection: Connection, page: Page | None) -> None:
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self.connection = connection
        self.cells = NatsCells(connection, entropy=self.entropy)
        self.signals = NatsSignals(connection)
        slots = PageSlots(page, self.clock.elapsed) if page else None
        self.mail = NatsMail(connection, clock=self.clock, entropy=self.entropy, ack_window_s=TTL_S, slots=slots)
        self.heard: list[Delivery] = []
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        bucket = await self.cells.open(leases_bucket(TTL_S))
        epochs = await self.cells.open(EPOCHS_BUCKET)
        duties = await self.cells.open(DUTIES_BUCKET)
        self.leases = LeaseStore(bucket, epochs, clock=self.clock, entropy=self.entropy)
        self.duties = DutyLeases(duties, epochs, clock=self.clock, entropy=self.entropy)
        self.bucket = bucket
        await self.mail.start()

    async def attach(self, handle: str) -> None:
        """Take what comes, and answer nothing."""

        async def handler(deliveries: Sequence[Delivery]) -> Outcome:
            self.heard.extend(deliveries)
            return await asyncio.shield(self.answer)

        options = BatchOptions(max_messages=10, partition_key=lambda _: "all", linger_s=0.1)
        good_until = self.clock.elapsed() + TTL_S
        await self.mail.attach(topics.inbox(handle), handler, good_until=good_until, options=options)

    async def die(self) -> None:
        """As a killed process does: not a word more, and the socket is closed."""
        self.connection.client.cut()
        await self.connection.close()


@pytest.fixture
async def sides(server: Server, page: Page) -> AsyncGenerator[tuple[Side, Side]]:
    """The incarnation that will die, and another."""
    both: list[Side] = []
    for owner, shared in ((DEAD, page), (ALIVE, None)):
        address = BrokerAddress(urls=server.urls, name=owner)
        connection = await Connection.open(address, clock=SystemClock(), startup_timeout_s=30)
        both.append(Side(connection, shared))
        await both[-1].open()
    yield both[0], both[1]
    for side in both:
        await side.signals.stop()
        await side.leases.stop()
        await side.duties.stop()
        await side.connection.close()


def overlook(*_: bytes) -> None:
    return None


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def until_in_hand(side: Side, inbox: Subscription, count: int) -> None:
    """A message is stored, and its sender told, before the broker hands it to a reader."""
    async with asyncio.timeout(BOUND_S):
        while (backlog := await side.mail.waiting(inbox)) is None or backlog.in_hand != count:
            await asyncio.sleep(0.01)


async def give_back(server: Server, page: Page, *, for_s: float = BOUND_S) -> GiveBack:
    work = GiveBack(page.read_owner(), *in_page(page), target_of(server), boottime() + for_s)
    await asyncio.to_thread(work.run)
    return work


def target_of(server: Server) -> Target:
    return Target(server.broker.home, "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Behind(Target):
    """The broker behind a link that loses what it is told to."""

    port: int = 0

    def ports(self) -> tuple[int, int]:
        return self.port, Target.ports(self)[1]


def behind(link: FaultyLink, server: Server) -> Target:
    return Behind(server.broker.home, "127.0.0.1", port=int(link.url.rpartition(":")[2]))


async def send_unheard(dead: Side, alive: Side, page: Page, handle: str) -> tuple[Subscription, Heard]:
    """Two messages that the broker hands to a busy node which does not read its socket any more, and then dies."""
    inbox = topics.inbox(handle)
    await Mailboxes(dead.mail, dead.clock, alarm_after_s=TTL_S).ensure([handle])
    await dead.mail.publish(inbox.topic, b"", message_id="worked")
    await dead.attach(handle)
    await until(lambda: dead.heard and in_page(page)[0])
    (heard,) = in_page(page)[1]
    await dead.connection.client.listen("nobody.reads.this", overlook)
    ask = json.dumps({"batch": 2, "expires": 30_000_000_000}).encode()
    dead.connection.client.send(f"$JS.API.CONSUMER.MSG.NEXT.{heard.stream}.{heard.consumer}", "nobody.reads.this", ask)
    for number in range(2):
        await alive.mail.publish(inbox.topic, b"", message_id=f"sent{number}")
    await until_in_hand(alive, inbox, 3)
    await dead.die()
    return inbox, heard


async def test_mail_in_a_dead_nodes_hands_is_with_the_next_reader_in_stream_order_long_before_its_window_ends(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    await Mailboxes(dead.mail, dead.clock, alarm_after_s=TTL_S).ensure(["mail"])
    for number in range(4):
        await dead.mail.publish(topics.inbox("mail").topic, b"%d" % number, message_id=f"m{number}")
    await dead.attach("mail")
    await until(lambda: len(dead.heard) == 4)
    await dead.die()
    work = await give_back(server, page)
    assert work.mail == 4
    await alive.mail.publish(topics.inbox("mail").topic, b"later", message_id="later")
    await alive.attach("mail")
    await until(lambda: len(alive.heard) == 5)
    assert [each.id for each in alive.heard] == ["m0", "m1", "m2", "m3", "later"]
    assert [each.deliveries for each in alive.heard] == [2, 2, 2, 2, 1]


async def test_mail_that_the_broker_sent_to_a_node_as_it_died_is_back_too(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    _, heard = await send_unheard(dead, alive, page, "sent")
    work = GiveBack(DEAD, in_page(page)[0], [heard], target_of(server), boottime() + BOUND_S)
    await asyncio.to_thread(work.run)
    assert work.mail == 3
    await alive.attach("sent")
    await until(lambda: len(alive.heard) == 3)
    assert [each.id for each in alive.heard] == ["worked", "sent0", "sent1"]


@pytest.mark.parametrize("question", [b".CONSUMER.INFO.", b".STREAM.MSG.GET.CREWLET_AGENT"])
@pytest.mark.parametrize("answer", ["none", "an election"])
async def test_a_consumer_that_does_not_answer_is_asked_again_and_never_taken_to_have_sent_nothing(
    server: Server, page: Page, sides: tuple[Side, Side], question: bytes, answer: str
) -> None:
    dead, alive = sides
    handle = f"asked-{answer[:2]}-{len(question)}"
    _, heard = await send_unheard(dead, alive, page, handle)
    lost = iter(range(2))

    def lose(frame: Frame) -> bytes | None:
        if question in frame.head and next(lost, None) is not None:
            if answer != "none":
                reply = frame.head.split(b" ")[2]
                link.inject(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(ELECTING), ELECTING))
            return None
        return frame.raw

    async with FaultyLink(server.url) as link:
        link.on_request = lose
        assert isinstance(await alive.leases.claim(f"seat:{handle}", DEAD), Granted)
        work = GiveBack(DEAD, [], [heard], behind(link, server), boottime() + BOUND_S)
        await asyncio.to_thread(work.run)
    assert next(lost, None) is None and work.mail == 2 and len(work.leases) == 1
    await alive.attach(handle)
    await until(lambda: len(alive.heard) == 2)
    assert [each.id for each in alive.heard] == ["sent0", "sent1"]


async def test_that_nobody_said_what_was_sent_is_told_and_keeps_no_lease(
    server: Server, page: Page, sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giveback, "_MAIL_S", 0.5)
    monkeypatch.setattr(giveback, "_ASK_S", 0.5)
    dead, alive = sides
    inbox, heard = await send_unheard(dead, alive, page, "silent")
    assert isinstance(await alive.leases.claim("seat:silent", DEAD), Granted)
    async with FaultyLink(server.url) as link:
        link.on_request = lambda frame: None if b".CONSUMER.INFO." in frame.head else frame.raw
        work = GiveBack(DEAD, [], [heard], behind(link, server), boottime() + BOUND_S)
        with pytest.raises(OSError, match="nobody said what else 1 of its inboxes had sent it"):
            await asyncio.to_thread(work.run)
    assert work.mail == 0 and len(work.leases) == 1
    waiting = await alive.mail.waiting(inbox)
    assert waiting is not None and waiting.in_hand == 3


async def test_mail_beyond_what_a_node_heard_is_left_alone_once_its_lease_may_be_anothers(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    inbox = topics.inbox("lapsed")
    await Mailboxes(dead.mail, dead.clock, alarm_after_s=TTL_S).ensure(["lapsed"])
    began_at = boottime()
    await dead.attach("lapsed")
    (heard,) = in_page(page)[1]
    assert began_at - DIGIT_S <= heard.until - TTL_S <= boottime() + DIGIT_S
    await dead.mail.stop()
    assert in_page(page) == ([], [])
    await dead.die()
    await alive.mail.publish(inbox.topic, b"", message_id="the successor's")
    await alive.attach("lapsed")
    await until(lambda: alive.heard)
    past = Heard(heard.stream, heard.consumer, heard.newest, boottime() - 0.01)
    work = GiveBack(DEAD, [], [past], target_of(server), boottime() + BOUND_S)
    await asyncio.to_thread(work.run)
    assert work.mail == 0


async def test_nothing_is_said_of_a_delivery_past_its_own_window_nor_of_one_that_was_settled(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    await Mailboxes(dead.mail, dead.clock, alarm_after_s=TTL_S).ensure(["window"])
    await dead.mail.publish(topics.inbox("window").topic, b"x", message_id="w0")
    began_at = boottime()
    await dead.attach("window")
    await until(lambda: len(dead.heard) == 1)
    (in_hand,) = in_page(page)[0]
    # All of the window but its margin, in which a hand-back might meet the broker's own.
    assert began_at - DIGIT_S <= in_hand.until - (TTL_S - 1.0) <= boottime() + DIGIT_S
    await dead.die()
    past = GiveBack(DEAD, [InHand(in_hand.reply, boottime() - 0.01)], [], target_of(server), boottime() + BOUND_S)
    await asyncio.to_thread(past.run)
    assert past.mail == 0
    waiting = await alive.mail.waiting(topics.inbox("window"))
    assert waiting is not None and (waiting.waiting, waiting.in_hand) == (0, 1)


async def test_the_page_follows_what_is_in_hand(page: Page, sides: tuple[Side, Side]) -> None:
    dead, _ = sides
    await Mailboxes(dead.mail, dead.clock, alarm_after_s=TTL_S).ensure(["hand"])
    for number in range(2):
        await dead.mail.publish(topics.inbox("hand").topic, b"", message_id=f"h{number}")
    await dead.attach("hand")
    await until(lambda: len(dead.heard) == 2)
    assert [one.sequence for one in in_page(page)[0]] == [each.sequence for each in dead.heard]
    assert {one.deliveries for one in in_page(page)[0]} == {1}
    dead.answer.set_result(Ack())
    await until(lambda: not in_page(page)[0])
    await dead.mail.stop()
    assert page.read_slots() == []


async def test_the_leases_of_a_dead_incarnation_go_back_and_no_others_and_the_seats_are_told_once(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    for resource in ("node:n1", "seat:a", "seat:b"):
        assert isinstance(await dead.leases.claim(resource, DEAD), Granted)
    assert isinstance(await dead.duties.claim("maintenance", DEAD, ttl_s=60), Granted)
    # It died between the first and the third write of a claim.
    under_way = encode(LeaseRecord(owner=DEAD, claim="c"))
    assert isinstance(await dead.bucket.create(key_of("seat:c"), under_way), Done)
    assert isinstance(await alive.leases.claim("seat:d", ALIVE), Granted)
    told: list[news.Freed] = []
    await alive.signals.listen(freednews.SIGNAL, lambda data: told.append(news.decode(data)))
    await alive.leases.get("seat:d")  # an answer: the broker knows by then that somebody listens
    await dead.die()
    work = await give_back(server, page)
    assert len(work.leases) == 5
    for resource in ("node:n1", "seat:a", "seat:b", "seat:c"):
        assert isinstance(await alive.leases.claim(resource, ALIVE), Granted), resource
    assert isinstance(await alive.duties.claim("maintenance", ALIVE, ttl_s=60), Granted)
    assert [lease.resource for lease in await alive.leases.list_owned(ALIVE, "seat")] == [
        "seat:a",
        "seat:b",
        "seat:c",
        "seat:d",
    ]
    await until(lambda: told)
    assert told == [news.Freed(owner=DEAD, node="n1", seats=("a", "b", "c"), standing="gone")]
    assert topics.signal(freednews.SIGNAL) == giveback.NEWS_SUBJECT


async def test_a_lease_that_the_next_incarnation_of_the_node_took_is_left_alone(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    first = await dead.leases.claim("seat:again", DEAD)
    assert isinstance(first, Granted)
    await dead.leases.release("seat:again", DEAD, first.lease.epoch)
    second = await alive.leases.claim("seat:again", ALIVE)
    assert isinstance(second, Granted)
    await dead.die()
    work = await give_back(server, page)
    assert "seat.again" not in {key for _, key in work.leases}
    assert await alive.leases.renew("seat:again", ALIVE, second.lease.epoch)


async def test_nothing_is_given_back_while_the_broker_shows_the_connection_of_the_dead(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    assert isinstance(await dead.leases.claim("seat:shown", DEAD), Granted)
    assert DEAD in connected(target_of(server).ports()[1])
    with pytest.raises(TimeoutError, match="still shows its connection"):
        await give_back(server, page, for_s=0.5)
    found = await alive.leases.get("seat:shown")
    assert found is not None and found.owner == DEAD
    await dead.die()
    assert ("crewlet_leases", "seat.shown") in (await give_back(server, page)).leases


async def test_a_parent_that_takes_a_living_node_for_dead_takes_nothing_of_it(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    owner, peer = sides
    first = await owner.leases.claim("seat:kept", DEAD)
    assert isinstance(first, Granted)
    assert isinstance(await owner.duties.claim("scheduler", DEAD, ttl_s=60), Granted)
    inbox = topics.inbox("kept")
    await Mailboxes(owner.mail, owner.clock, alarm_after_s=TTL_S).ensure(["kept"])
    await owner.attach("kept")
    await owner.mail.publish(inbox.topic, b"", message_id="worked")
    await until(lambda: owner.heard and in_page(page)[0])
    told: list[bytes] = []
    await peer.signals.listen(freednews.SIGNAL, told.append)
    claiming = asyncio.ensure_future(give_back(server, page, for_s=1.0))
    while not claiming.done():
        assert await owner.leases.renew("seat:kept", DEAD, first.lease.epoch)
        assert not isinstance(await peer.leases.claim("seat:kept", ALIVE), Granted)
        assert not isinstance(await peer.duties.claim("scheduler", ALIVE, ttl_s=60), Granted)
    with pytest.raises(TimeoutError, match="still shows its connection"):
        await claiming
    backlog = await peer.mail.waiting(inbox)
    assert backlog is not None and (backlog.waiting, backlog.in_hand) == (0, 1)
    assert not told


async def test_a_living_node_that_is_taken_for_dead_while_its_link_is_broken_renews_nothing_once_it_is_back(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    _, peer = sides
    lives = "n1:lives"
    page.write_owner(lives)
    async with FaultyLink(server.url) as link:
        address = BrokerAddress(urls=(link.url,), name=lives)
        owner = Side(await Connection.open(address, clock=SystemClock(), startup_timeout_s=30), None)
        await owner.open()
        first = await owner.leases.claim("seat:parted", lives)
        assert isinstance(first, Granted)
        link.refuse()
        assert ("crewlet_leases", "seat.parted") in (await give_back(server, page)).leases
        second = await peer.leases.claim("seat:parted", ALIVE)
        assert isinstance(second, Granted) and second.lease.epoch > first.lease.epoch
        await link.accept()
        await until(lambda: owner.connection.is_connected)
        assert not await owner.leases.renew("seat:parted", lives, first.lease.epoch)
        assert await peer.leases.renew("seat:parted", ALIVE, second.lease.epoch)
        await owner.leases.stop()
        await owner.duties.stop()
        await owner.connection.close()


async def test_a_broker_that_is_down_for_a_moment_is_waited_for(
    server: Server, page: Page, sides: tuple[Side, Side]
) -> None:
    dead, alive = sides
    assert isinstance(await dead.leases.claim("seat:patient", DEAD), Granted)
    server.kill()
    await dead.die()
    giving = asyncio.ensure_future(give_back(server, page))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.restart)
    assert ("crewlet_leases", "seat.patient") in (await giving).leases
    await until(lambda: alive.connection.is_connected)


@pytest.mark.parametrize("deliveries", [1, 2, 3, 7, 25])
def test_what_keeps_killing_nodes_comes_back_on_the_schedule_of_what_keeps_failing(deliveries: int) -> None:
    nak = InHand(f"$JS.ACK.CREWLET_AGENT.agent-a.{deliveries}.7.9.1700000000000000000.0", 0.0).nak()
    assert nak.payload.startswith(b"-NAK")
    told = json.loads(nak.payload.removeprefix(b"-NAK") or b"{}")
    assert told == ({} if deliveries == 1 else {"delay": round(nak_delay_s(deliveries) * 1e9)})


@pytest.mark.parametrize(
    "line", ["", "nonsense", "12.0", "x $JS.ACK.S.c.1.2.3.4.5", "1.0 HEARD.S.c", "1.0 HEARD.S.c.x", "12.0 $JS.ACK.S"]
)
def test_a_line_that_is_no_delivery_is_left_out(page: Page, line: str) -> None:
    good = "12.000 $JS.ACK.S.c.1.2.3.4.5"
    page.write_slot(3, [line, good])
    assert in_page(page) == ([InHand("$JS.ACK.S.c.1.2.3.4.5", 12.0)], [])


def test_the_helper_says_that_the_leases_had_run_out(
    page: Page, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page.write_good_until(boottime() - 0.01)
    os.environ["CREWLET_PAGE_FD"] = str(os.dup(page.fd))
    try:
        assert giveback.main([str(tmp_path), "127.0.0.1"]) == 1
    finally:
        del os.environ["CREWLET_PAGE_FD"]
    assert capfd.readouterr().err == f"crewlet up: nothing of {DEAD} is given back: its leases had run out.\n"


def test_the_helper_says_that_there_was_nothing_as_under_local_coordination(
    server: Server, page: Page, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.restart()  # one that a test started from a thread ended with that thread
    page.write_owner("n1:lease-less")
    monkeypatch.setenv("CREWLET_PAGE_FD", str(os.dup(page.fd)))
    assert giveback.main([str(server.broker.home), "127.0.0.1"]) == 0
    said = capsys.readouterr().err
    assert said == (
        "crewlet up: n1:lease-less had no mail in hand and no leases, so that there is nothing to give back.\n"
    )


def test_a_released_record_keeps_what_it_does_not_know() -> None:
    raw = {"owner": DEAD, "epoch": 3, "meta": {"ä": 1}, "new_field": [1]}
    released = Held(LEASES, "seat.a", 9, raw).release()
    assert json.loads(released.payload) == {**raw, "released": True}
    assert msgspec.json.decode(released.payload, type=LeaseRecord).released
