"""The mailbox registry and its sweep over a real broker: versions, more mailboxes than one page."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta, timezone

import pytest
from cells_worlds import LocalWorld, NatsWorld

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.duties.retiring import MailboxSweep
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes
from crewlet.mail.registry import MAILBOXES_BUCKET, MailboxRecord, MailboxRegistry
from crewlet.mail.retired import RETIREMENTS_BUCKET, Retirements
from crewlet.ports.cells import BucketSpec, CellStore, Refused
from crewlet.ports.mail import NoMailbox, Subscription
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.cells import done

ABSENT_AT = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))


@pytest.fixture
async def nats(server: Server) -> AsyncGenerator[NatsWorld]:
    async with AsyncExitStack() as stack:
        yield NatsWorld(server.urls, stack=stack)


async def check_registry(store: CellStore, name: str) -> None:
    registry = MailboxRegistry(await store.open(BucketSpec(name)))
    first = done(await registry.create("ceo", absent_since=ABSENT_AT))
    assert isinstance(await registry.create("ceo"), Refused)
    record = await registry.get("ceo")
    assert record is not None and record.absent_since is not None
    assert (record, record.absent_since.tzinfo) == (MailboxRecord("ceo", first, ABSENT_AT), UTC)
    marked = record.marked(ABSENT_AT + timedelta(days=1), "n1:retire-a")
    second = done(await registry.update(marked))
    for stale in (record, MailboxRecord("ceo", 0), MailboxRecord("ceo", second + 1), MailboxRecord("nobody", second)):
        assert isinstance(await registry.update(stale), Refused)
        assert isinstance(await registry.delete(stale), Refused)
    found = await registry.get("ceo")
    assert found is not None and found.retiring_since is not None
    assert (found.version, found.retiring_by, found.retiring_since.tzinfo) == (second, "n1:retire-a", UTC)
    done(await registry.delete(found))
    assert await registry.get("ceo") is None
    third = done(await registry.create("ceo"))
    assert third > second > first
    assert isinstance(await registry.update(found), Refused)
    assert dict((await registry.list()).records) == {"ceo": MailboxRecord("ceo", third)}
    now = await registry.now()
    assert now.tzinfo is UTC


@pytest.mark.proves("MB-19")
async def test_a_record_changes_at_its_exact_version_only_in_this_process() -> None:
    world = LocalWorld()
    await check_registry(await world.store(), "crewlet_mailboxes")


@pytest.mark.real
@pytest.mark.proves("MB-19")
async def test_a_record_changes_at_its_exact_version_only_on_a_server(nats: NatsWorld) -> None:
    await check_registry(await nats.store(), nats.name("mailboxes"))


@pytest.mark.real
@pytest.mark.proves("SU-07", "SU-08")
async def test_a_sweep_finds_mailboxes_beyond_one_page_of_the_brokers_list_and_deletes_exactly_those_of_left_seats(
    nats: NatsWorld,
) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    connection = await nats.connect()
    store = NatsCells(connection, entropy=entropy)
    mail = NatsMail(connection, clock=clock, entropy=entropy, ack_window_s=30.0)
    await mail.start()
    leases = LeaseStore(
        await store.open(leases_bucket(30.0)), await store.open(EPOCHS_BUCKET), clock=clock, entropy=entropy
    )
    registry = MailboxRegistry(await store.open(MAILBOXES_BUCKET))
    retirements = Retirements(lambda: store.open(RETIREMENTS_BUCKET))
    mailboxes = Mailboxes(mail, clock, alarm_after_s=30.0, registry=registry)
    staying = [f"seat-{number:03}" for number in range(100)]
    # As a node makes them whose every registration failed: only the broker knows these.
    unregistered = Mailboxes(mail, clock, alarm_after_s=30.0, registry=None)
    assert await unregistered.ensure([*staying, "zz-left", "aa-left"]) == 306
    assert await mailboxes.ensure(staying) == 0
    stranger = Subscription(topics.inbox("zz-left").topic, "audit")
    await mail.ensure_subscription(stranger)
    for handle in ("zz-left", "seat-000"):
        await mail.publish(topics.inbox(handle).topic, b"hello", message_id=f"to-{handle}")

    async def roster() -> frozenset[str]:
        return frozenset(staying)

    def sweeper(grace_s: float) -> MailboxSweep:
        return MailboxSweep(
            registry,
            mailboxes,
            mail,
            retirements,
            leases,
            roster,
            node_id="n1",
            clock=clock,
            entropy=entropy,
            grace_s=grace_s,
        )

    report = await sweeper(3600.0).sweep()
    assert (report.stamped, report.registered, report.retired, report.errors) == (["aa-left", "zz-left"], [], [], [])
    report = await sweeper(0.0).sweep()
    assert (report.retired, report.held, report.errors) == (["aa-left", "zz-left"], [], [])
    assert report.deleted == {"aa-left": 0, "zz-left": 1}
    retired = await retirements.last("zz-left")
    assert retired is not None and (retired.total, retired.messages["inbox"]) == (1, 1)
    left = await mail.list_subscriptions(topics.ALL_MAILBOXES)
    assert sorted(left) == sorted([stranger, *(one for handle in staying for one in topics.mailbox(handle))])
    backlog = await mail.waiting(topics.inbox("seat-000"))
    assert backlog is not None and backlog.waiting == 1
    kept = await mail.waiting(stranger)
    assert kept is not None and kept.waiting == 1
    await mail.delete_subscription(stranger)
    with pytest.raises(NoMailbox):
        await mail.publish(topics.inbox("zz-left").topic, b"late", message_id="late")
    assert set((await registry.list()).records) == set(staying)
    assert await leases.list_live("seat") == []
    # Back in the company, under the same handle: a new mailbox, and it is empty.
    assert await mailboxes.ensure(["zz-left"]) == 3
    backlog = await mail.waiting(topics.inbox("zz-left"))
    assert backlog is not None and backlog.waiting == 0
    await mail.stop()
