"""Mail on three members: the contract's core, flaps, and a consumer's leader that goes away."""

import asyncio
import contextlib
import functools
import json
import math
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from urllib.request import urlopen

import pytest
from mail_worlds import NatsWorld, flap, nats_world

from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.subscriptions import Consumers
from crewlet.mail import topics
from crewlet.ports.errors import NotTaken, Unavailable
from crewlet.ports.mail import BatchOptions, Subscription
from crewlet.testing.brokers import Cluster, three_members
from crewlet.testing.contracts import mail as contract
from crewlet.testing.contracts import mailattachments as attachments
from crewlet.testing.contracts import mailbatches as batches
from crewlet.testing.contracts import mailsubscriptions as subscriptions
from crewlet.testing.contracts.mailworld import Desk, MakeWorld, key, send, until, until_backlog

pytestmark = [pytest.mark.cluster, pytest.mark.real]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    with three_members(tmp_path_factory.mktemp("mail-cluster")) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path) -> Generator[Cluster]:
    """For a test that ends a member: the next test would meet a cluster that is still putting itself together."""
    with three_members(tmp_path) as running:
        yield running


@pytest.mark.parametrize(
    "check",
    [
        contract.a_deferral_returns_at_the_head_and_quiesces,
        attachments.a_detach_does_not_wait_and_a_late_deferral_harms_nobody,
        subscriptions.mail_to_nobody_is_refused_and_does_not_burn_its_id,
        subscriptions.a_seats_mail_is_kept_by_its_own_mailbox_alone,
        subscriptions.a_delete_takes_the_mail_and_spares_the_sibling,
        subscriptions.a_listing_names_every_pair_exactly,
        attachments.after_a_detach_no_pull_is_open,
        attachments.an_unprolonged_delivery_goes_to_the_next_reader,
        contract.every_hand_back_costs_one_delivery,
        contract.a_handler_may_publish_to_its_own_inbox,
        batches.a_deferred_partition_stops_its_batch,
    ],
    ids=lambda check: check.__name__,
)
async def test_three_members_keep_the_contract(cluster: Cluster, check: Callable[[MakeWorld], Awaitable[None]]) -> None:
    await check(functools.partial(nats_world, cluster.urls, replicas=3))


@pytest.mark.parametrize("options", [None, BatchOptions(max_messages=10, partition_key=key)], ids=["one", "ten"])
async def test_flaps_under_load_lose_and_double_nothing(cluster: Cluster, options: BatchOptions | None) -> None:
    async with nats_world(cluster.urls, ack_window_s=300.0, delivery_budget=1000, replicas=3) as world:
        inbox = Subscription(world.topic("inbox"), "g")
        handled = await flap(world, inbox, flaps=60, events=150, seed=3, options=options)
        assert set(handled.values()) == {1}
        async with asyncio.timeout(30):
            while await world.kept(inbox.topic) > 0:  # members apply what was acked in their own time
                await asyncio.sleep(0.05)
        assert await world.dead_letters(inbox.topic) == []


async def test_a_delete_without_a_quorum_is_in_doubt_although_its_leader_finds_nothing_to_delete(
    own_cluster: Cluster,
) -> None:
    cluster = own_cluster
    leader = await asyncio.to_thread(leader_of_all, cluster)
    others = [member for member in range(3) if member != leader]
    async with nats_world((cluster.urls[leader],), replicas=3) as world:
        mail = await world.client()
        inbox = await inbox_led_by(cluster, leader, world)
        for member in others:
            cluster.freeze(member)
        with pytest.raises(Unavailable) as raised:
            await mail.delete_subscription(inbox, patience_s=2.5)
        assert not isinstance(raised.value, NotTaken)
        for member in others:
            cluster.thaw(member)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Unavailable):
                    await mail.delete_subscription(inbox, patience_s=30.0)
                    break
            while True:  # members apply what was agreed in their own time
                with contextlib.suppress(Unavailable):
                    if await mail.waiting(inbox) is None:
                        break
                await asyncio.sleep(0.05)


async def inbox_led_by(cluster: Cluster, member: int, world: NatsWorld) -> Subscription:
    """A new inbox whose consumer that member leads, and speaks for."""
    mail = await world.client()
    consumers = Consumers(world.connections[0], world.entropy, world.ack_window_s)
    for number in range(60):
        inbox = Subscription(world.topic(f"inbox{number}"), "g")
        await mail.ensure_subscription(inbox)
        info = await consumers.info(inbox)
        if info is not None and cluster.index(info["cluster"]["leader"]) == member:
            return inbox
    raise AssertionError("none of sixty consumers is led by it")


def leader_of_all(cluster: Cluster) -> int:
    """Which member assigns streams and consumers."""
    with urlopen(f"{cluster.members[0].monitor_url}/jsz", timeout=30) as answer:
        return cluster.index(json.load(answer)["meta_cluster"]["leader"])


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_a_consumers_leader_that_goes_away_leaves_nobody_deaf(own_cluster: Cluster, how: str) -> None:
    cluster = own_cluster
    async with nats_world(cluster.urls, replicas=3) as world:
        mail, sender = await world.client(), await world.client()
        inboxes = [topics.inbox(f"{how}-{number}") for number in range(6)]
        desks = [Desk() for _ in inboxes]
        for inbox, desk in zip(inboxes, desks, strict=True):
            await _patiently(lambda inbox=inbox, desk=desk: mail.attach(inbox, desk, good_until=math.inf))
        info = await ask(world.connections[0], f"CONSUMER.INFO.CREWLET_AGENT.{inboxes[0].group}")
        leader = cluster.index(info["cluster"]["leader"])
        await asyncio.to_thread(cluster.kill if how == "kill" else cluster.terminate, leader)
        try:
            for inbox in inboxes:
                await _patiently(lambda inbox=inbox: send(sender, inbox.topic, "e1"))
            await until(world, lambda: all(desk.ids[-1:] == ["e1"] for desk in desks), within_s=90.0)
        finally:
            await asyncio.to_thread(cluster.restart, leader)
        for inbox in inboxes:
            await until_backlog(world, sender, inbox, lambda it: (it.waiting, it.in_hand, it.open_pulls) == (0, 0, 1))


async def _patiently(act: Callable[[], Awaitable[object]]) -> None:
    """An election may outlast a call's own budget; every call here may be repeated."""
    for attempt in range(6):
        try:
            await act()
            return
        except Unavailable:
            if attempt == 5:
                raise
