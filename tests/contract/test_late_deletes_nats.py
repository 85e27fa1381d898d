"""Deletes of mailboxes on a real server that reach it late, twice, or not at all."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.nats.subscriptions import consumer_name
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.duties.retiring import MailboxSweep, Report
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.mail.registry import MAILBOXES_BUCKET, MailboxRegistry
from crewlet.mail.retired import RETIREMENTS_BUCKET, Retirements
from crewlet.mail.retirement import RESUME_AFTER_S, TAKE_OVER_AFTER_S
from crewlet.ports.errors import NotTaken, Unavailable
from crewlet.ports.mail import Subscription
from crewlet.seats.lease import ClaimRefused, Granted, seat_resource
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.testing.brokers import Server
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = pytest.mark.real

TTL_S = 16.0
BOUND_S = 30.0
CLOCK, ENTROPY = SystemClock(), SystemEntropy()


class Node:
    """What a node has of the mailboxes of its company, over a link of its own."""

    def __init__(self, link: FaultyLink, connection: Connection) -> None:
        self.link = link
        self.store = NatsCells(connection, entropy=ENTROPY)
        self.mail = NatsMail(connection, clock=CLOCK, entropy=ENTROPY, ack_window_s=TTL_S)

    async def open(self) -> "Node":
        await self.mail.start()
        cells, epochs = await self.store.open(leases_bucket(TTL_S)), await self.store.open(EPOCHS_BUCKET)
        self.leases = LeaseStore(cells, epochs, clock=CLOCK, entropy=ENTROPY)
        self.registry = MailboxRegistry(await self.store.open(MAILBOXES_BUCKET))
        self.mailboxes = Mailboxes(self.mail, CLOCK, alarm_after_s=TTL_S, registry=self.registry)
        return self

    async def leaves(self, handle: str) -> None:
        """A seat with a mailbox leaves the company, and one sweep sees it."""
        await self.mailboxes.ensure([handle])
        assert (await self.sweep(handle)).stamped == [handle]

    async def sweep(self, left: str) -> Report:
        """One sweep without a grace, of a company that one seat has left."""

        async def roster() -> frozenset[str]:
            return frozenset((await self.registry.list()).records) - {left}

        retirements = Retirements(lambda: self.store.open(RETIREMENTS_BUCKET))
        return await MailboxSweep(
            self.registry,
            self.mailboxes,
            self.mail,
            retirements,
            self.leases,
            roster,
            node_id="n1",
            clock=CLOCK,
            entropy=ENTROPY,
            grace_s=0.0,
        ).sweep()


@pytest.fixture
async def stack() -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def node(stack: AsyncExitStack, server: Server) -> Node:
    link = await stack.enter_async_context(FaultyLink(server.url))
    opened = await Node(link, await NatsWorld((link.url,), stack=stack).connect()).open()
    stack.push_async_callback(opened.mail.stop)
    return opened


def is_delete(frame: Frame) -> bool:
    return b"$JS.API.CONSUMER.DELETE." in frame.head


async def until_held(link: FaultyLink) -> None:
    async with asyncio.timeout(BOUND_S):
        while not link.held:
            await asyncio.sleep(0.01)


async def until_waiting(peer: Node, inbox: Subscription, count: int | None) -> None:
    """Until so much mail waits, or no mailbox is there (None): the broker acts, and counts, in its own time."""
    async with asyncio.timeout(BOUND_S):
        while (None if (backlog := await peer.mail.waiting(inbox)) is None else backlog.waiting) != count:
            await asyncio.sleep(0.01)


@pytest.mark.proves("MB-15")
async def test_a_delete_that_arrives_after_its_sweep_takes_no_mailbox_of_a_seat_that_came_back(
    stack: AsyncExitStack, server: Server
) -> None:
    sweeper, peer = await node(stack, server), await node(stack, server)
    await sweeper.leaves("ceo")
    sweeper.link.hold_requests(is_delete)
    report = await sweeper.sweep("ceo")
    assert (report.retired, report.held, len(report.errors)) == ([], [], 1)
    assert sweeper.link.held
    # The seat is back. Whoever claims it or makes its mailbox now would lose it to what is still on its way.
    assert isinstance(await peer.leases.claim(seat_resource("ceo"), "n2:1", gated=True), ClaimRefused)
    with pytest.raises(Unavailable, match="is being retired"):
        await peer.mailboxes.ensure(["ceo"])
    await sweeper.link.deliver_held()
    await until_waiting(peer, topics.inbox("ceo"), None)
    peer.link.shift_store_now(int(TAKE_OVER_AFTER_S) + 1)
    assert await peer.mailboxes.ensure(["ceo"]) == 1
    await peer.mail.publish(topics.inbox("ceo").topic, b"hello", message_id="m1")
    await until_waiting(peer, topics.inbox("ceo"), 1)


async def test_a_retirement_in_doubt_is_finished_by_a_later_sweep(stack: AsyncExitStack, server: Server) -> None:
    sweeper, peer = await node(stack, server), await node(stack, server)
    await sweeper.leaves("cfo")
    sweeper.link.hold_requests(is_delete, count=1)
    sweeping = asyncio.create_task(sweeper.sweep("cfo"))
    await until_held(sweeper.link)
    sweeping.cancel()
    await asyncio.wait([sweeping])
    record = await peer.registry.get("cfo")
    lease = await peer.leases.get(seat_resource("cfo"))
    assert record is not None and lease is not None and lease.owner == record.retiring_by != ""
    await sweeper.link.deliver_held()
    # As if the lease had lapsed: its owner is known, and nobody waits for it here.
    assert await peer.leases.release(seat_resource("cfo"), lease.owner, lease.epoch)
    peer.link.shift_store_now(int(RESUME_AFTER_S) + 1)
    assert (await peer.sweep("cfo")).retired == ["cfo"]
    assert await peer.registry.get("cfo") is None
    assert isinstance(await peer.leases.claim(seat_resource("cfo"), "n2:1", gated=True), Granted)


async def test_an_answer_that_was_lost_is_had_again_over_the_same_connection_and_settles_the_retirement(
    stack: AsyncExitStack, server: Server
) -> None:
    sweeper = await node(stack, server)
    await sweeper.leaves("cto")
    lost: list[Frame] = []

    def lose_first(frame: Frame) -> bytes | None:
        if not lost and frame.body is not None and b"consumer_delete_response" in frame.body:
            lost.append(frame)
            return None
        return frame.raw

    sweeper.link.on_answer = lose_first
    report = await sweeper.sweep("cto")
    assert (report.retired, report.errors, len(lost)) == (["cto"], [], 1)
    assert await sweeper.leases.get(seat_resource("cto")) is None


async def test_what_left_over_a_connection_that_broke_is_settled_by_no_answer_over_another(
    stack: AsyncExitStack, server: Server
) -> None:
    sender, peer = await node(stack, server), await node(stack, server)
    inbox = topics.inbox("overtaken")
    await peer.mail.ensure_subscription(inbox)
    sender.link.hold_requests(is_delete, count=1)
    deleting = asyncio.create_task(sender.mail.delete_subscription(inbox, patience_s=BOUND_S))
    await until_held(sender.link)
    sender.link.cut()
    with pytest.raises(Unavailable, match="may still arrive") as raised:
        await deleting
    assert not isinstance(raised.value, NotTaken)
    assert await peer.mail.waiting(inbox) is None
    # It does arrive, and takes what was made anew.
    assert await peer.mail.ensure_subscription(inbox) is True
    await sender.link.deliver_held()
    await until_waiting(peer, inbox, None)


async def test_a_delete_that_could_not_be_sent_says_so(stack: AsyncExitStack, server: Server) -> None:
    sender, peer = await node(stack, server), await node(stack, server)
    inbox = topics.inbox("unsent")
    await peer.mail.ensure_subscription(inbox)
    sender.link.refuse()
    async with asyncio.timeout(BOUND_S):
        while sender.mail._connection.is_connected:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.01)
    with pytest.raises(NotTaken):
        await sender.mail.delete_subscription(inbox, patience_s=0.5)
    await sender.link.accept()
    assert await sender.mail.delete_subscription(inbox, patience_s=BOUND_S) is True


async def test_not_found_is_no_answer_while_the_consumer_is_there(stack: AsyncExitStack, server: Server) -> None:
    """As several servers answer while a delete is on its way between them."""
    sender = await node(stack, server)
    inbox = topics.inbox("in-flight")
    await sender.mail.ensure_subscription(inbox)

    def answered_too_early(times: int) -> None:
        left = times

        def judge(frame: Frame) -> bytes:
            nonlocal left
            if left > 0 and is_delete(frame):
                left -= 1
                name = consumer_name(inbox).encode()
                return Frame(frame.head.replace(name, b"nobody"), frame.body).raw
            return frame.raw

        sender.link.on_request = judge

    answered_too_early(1_000)
    with pytest.raises(Unavailable, match="is being deleted") as raised:
        await sender.mail.delete_subscription(inbox, patience_s=0.5)
    assert not isinstance(raised.value, NotTaken)
    answered_too_early(2)
    assert await sender.mail.delete_subscription(inbox, patience_s=BOUND_S) is True
    assert await sender.mail.delete_subscription(inbox) is False


async def test_a_subscription_of_a_stream_that_is_gone_cannot_be_deleted_and_that_is_certain(
    stack: AsyncExitStack, server: Server
) -> None:
    sender = await node(stack, server)
    inbox = Subscription("crewlet.notifications.inbound", "audit")
    await sender.mail.ensure_subscription(inbox)
    await sender.mail._connection.js.delete_stream("CREWLET_NOTIFICATIONS")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotTaken, match="was deleted"):
        async with asyncio.timeout(3 * BOUND_S):  # and not after its patience
            await sender.mail.delete_subscription(inbox, patience_s=100 * BOUND_S)
