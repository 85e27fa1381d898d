"""The maintenance duty in whole nodes: a removed seat's mailbox, and who may judge a seat absent."""

import asyncio

import pytest
from node_rig import Fleet

from crewlet.company.instants import Schedule
from crewlet.company.model import Company, Seat
from crewlet.duties.maintenance import EVERY_S
from crewlet.mail import topics
from crewlet.node.roster import FleetRoster
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import NoMailbox
from crewlet.seats.lease import Granted, node_resource, seat_resource
from crewlet.testing.virtual import in_virtual_time

GRACE_S = 2 * EVERY_S
WORKERS = frozenset({"seats", "workers"})


def company(*handles: str) -> Company:
    return Company("acme", tuple(Seat(handle) for handle in handles))


async def mailbox(fleet: Fleet, handle: str) -> int:
    """How many of a seat's three subscriptions the broker has."""
    mail = next(iter(fleet.nodes.values())).commands.outbox.mail
    return sum([await mail.waiting(one) is not None for one in topics.mailbox(handle)])


@in_virtual_time
async def test_a_removed_seat_keeps_its_mail_for_the_grace_and_then_loses_its_mailbox_without_anybody_asking() -> None:
    fleet = Fleet(("a", "b"), roles=WORKERS, removed_seat_grace_s=GRACE_S)
    outbox = (await fleet.node("n1")).commands.outbox
    await fleet.stop("n1")
    await fleet.publish(outbox, "b", "kept")
    fleet.company = company("a")
    node = await fleet.node("n1", incarnation=2)
    await asyncio.sleep(GRACE_S - 60)
    backlog = await node.commands.outbox.mail.waiting(topics.inbox("b"))
    assert backlog is not None and backlog.waiting == 1
    await asyncio.sleep(EVERY_S + 120)
    assert await mailbox(fleet, "b") == 0
    assert await mailbox(fleet, "a") == 3
    with pytest.raises(NoMailbox):
        await node.commands.outbox.mail.publish(topics.inbox("b").topic, b"x", message_id="late")
    await fleet.close()


@in_virtual_time
async def test_a_seat_that_a_peer_with_another_document_runs_is_never_called_absent() -> None:
    fleet = Fleet(("a",), roles=WORKERS, removed_seat_grace_s=GRACE_S)
    await fleet.node("old")
    fleet.company = company("a", "new")
    await fleet.node("new")
    await asyncio.sleep(GRACE_S + EVERY_S)
    assert await mailbox(fleet, "new") == 3
    tick = await fleet.nodes["old"].commands.duties.run("maintenance")
    assert tick.outcome == "failed" and "node new has another list of seats" in tick.detail
    await fleet.stop("old")
    await asyncio.sleep(EVERY_S + 1)
    tick = await fleet.nodes["new"].commands.duties.run("maintenance")
    assert tick.outcome == "done"
    await fleet.close()


@in_virtual_time
async def test_a_peer_that_does_not_say_which_seats_it_knows_makes_the_roster_unknown_until_it_is_gone() -> None:
    fleet = Fleet(("a",), roles=WORKERS, removed_seat_grace_s=GRACE_S)
    node = await fleet.node("n1")
    roster = FleetRoster(lambda: fleet.company, node.leases, node.health().owner)
    assert await roster.agreed() == {"a"}
    older = await node.leases.claim(node_resource("older"), "older:1", meta={"roles": ["seats"]})
    assert isinstance(older, Granted)
    with pytest.raises(Unavailable, match="node older does not say"):
        await roster.agreed()
    said = await FleetRoster(lambda: company("a"), node.leases, "older:1").status()
    await node.leases.renew(older.lease.resource, "older:1", older.lease.epoch, meta={"status": dict(said)})
    assert await roster.agreed() == {"a"}
    fleet.company = company("a", "b")
    with pytest.raises(Unavailable, match="another list"):
        await roster.agreed()
    await node.leases.release(older.lease.resource, "older:1", older.lease.epoch)
    assert await roster.agreed() == {"a", "b"}
    await fleet.close()


@in_virtual_time
async def test_another_process_under_this_nodes_id_is_a_peer_whose_seats_count() -> None:
    fleet = Fleet(("a",), roles=WORKERS)
    node = await fleet.node("n1")
    twin = FleetRoster(lambda: company("a", "b"), node.leases, "n1:twin")
    with pytest.raises(Unavailable, match="node n1 has another list"):
        await twin.agreed()
    await fleet.close()


@in_virtual_time
async def test_a_mailbox_that_could_not_be_made_is_not_made_any_more_once_its_seat_has_left() -> None:
    fleet = Fleet(("a",), roles=WORKERS)
    node = await fleet.node("n1")
    fleet.refuse("ensure_subscription", "list_subscriptions")
    await node.adopt(company("a", "short-lived"))
    await node.adopt(company("a"))
    fleet.allow()
    await asyncio.sleep(60)
    assert await mailbox(fleet, "short-lived") == 0
    assert await mailbox(fleet, "a") == 3
    await fleet.close()


@in_virtual_time
async def test_one_node_of_a_fleet_does_the_duty_and_a_stopped_one_gives_it_to_its_peer() -> None:
    fleet = Fleet(("a", "b"), roles=WORKERS, removed_seat_grace_s=GRACE_S)
    first = await fleet.node("n1")
    second = await fleet.node("n2")
    await asyncio.sleep(1)
    duty, _scheduler = (await second.commands.duties.list()).duties
    assert (duty.name, duty.node, duty.owner) == ("maintenance", "n1", "n1:1")
    assert duty.expires_in is not None and duty.last_here is not None and duty.last_here.outcome == "held"
    assert (await second.commands.duties.run("maintenance")).outcome == "held"
    assert (await first.commands.duties.run("maintenance")).outcome == "done"
    await fleet.stop("n1")
    assert (await second.commands.duties.list()).duties[0].node is None
    assert (await second.commands.duties.run("maintenance")).outcome == "done"
    await fleet.close()
    assert fleet.holder("a") is None


@in_virtual_time
async def test_a_seat_of_the_company_is_never_claimed_by_the_sweep_of_its_mailbox() -> None:
    fleet = Fleet(("a",), roles=WORKERS, removed_seat_grace_s=GRACE_S)
    node = await fleet.node("n1")
    await asyncio.sleep(3 * EVERY_S)
    lease = await node.leases.get(seat_resource("a"))
    assert lease is not None and (lease.owner, lease.epoch) == ("n1:1", 1)
    await fleet.close()


@in_virtual_time
async def test_a_node_with_an_older_document_forgets_no_schedule_of_a_live_peer_and_says_who_has_it() -> None:
    kept = Schedule("kept", "a", "look", every_s=3600)
    newer = Company("acme", (Seat("a"),), schedules=(kept, Schedule("new", "a", "look", every_s=3600)))
    fleet = Fleet(("a",), roles=WORKERS)
    fleet.company = newer
    await fleet.node("first")
    await asyncio.sleep(60)
    await fleet.stop("first")
    fleet.roles = frozenset({"seats"})
    newest = await fleet.node("newest")
    fleet.roles, fleet.company = WORKERS, Company("acme", (Seat("a"),), schedules=(kept,))
    older = await fleet.node("older")
    await asyncio.sleep(60)
    tick = await older.commands.duties.run("scheduler")
    assert tick.outcome == "failed" and "new: the company's schedules are not certain: node newest has" in tick.detail
    await asyncio.sleep(3700)
    new = next(row for row in (await newest.commands.schedules.list()).schedules if row.name == "new")
    assert new.last_at is None
    await fleet.stop("newest")
    await asyncio.sleep(60)
    assert (await older.commands.duties.run("scheduler")).outcome == "done"
    told = await older.commands.schedules.history("new")
    assert [fire.outcome for fire in told.fires] == ["skipped_catchup"]
    await fleet.close()
