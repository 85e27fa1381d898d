"""What a sweep notices of the company's mailboxes, over faulty cells and a twin broker, in virtual time."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from mailbox_rig import ALL_THREE, TTL_S, Office, absent_for, post, refusing
from structlog.testing import capture_logs

from crewlet.mail import topics
from crewlet.mail.retirement import GRACE_S
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import NoMailbox, Subscription
from crewlet.seats.lease import seat_resource
from crewlet.testing.virtual import in_virtual_time


@in_virtual_time
async def test_the_mail_of_a_removed_seat_lives_through_the_grace_and_goes_after_it() -> None:
    office = await Office("boss", "ceo").open()
    await office.mailboxes.ensure(["boss", "ceo"])
    await post(office, "ceo")
    office.roster = frozenset({"boss"})
    assert (await office.sweep()).stamped == ["ceo"]
    await office.clock.sleep(GRACE_S - 60)
    assert (await office.sweep()).line() == ""
    assert await office.there("ceo") == ALL_THREE
    backlog = await office.waiting(topics.inbox("ceo"))
    assert backlog is not None and backlog.waiting == 1
    await office.clock.sleep(60)
    with capture_logs() as logs:
        assert (await office.sweep()).retired == ["ceo"]
    assert [(line["event"], line["messages"]) for line in logs] == [("seat_mailbox_retired", 1)]
    assert await office.there("ceo") == []
    assert await office.there("boss") == ALL_THREE
    assert await office.record("ceo") is None
    assert await office.leases.get(seat_resource("ceo")) is None
    with pytest.raises(NoMailbox):
        await post(office, "ceo", "m2")


@in_virtual_time
async def test_a_seat_that_returns_keeps_its_mail_and_a_later_removal_starts_a_whole_grace() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo", seconds=GRACE_S - 1)
    office.add("ceo")
    assert (await office.sweep()).returned == ["ceo"]
    await office.remove("ceo")
    await office.clock.sleep(GRACE_S - 1)
    assert (await office.sweep()).retired == []
    await office.clock.sleep(1)
    assert (await office.sweep()).retired == ["ceo"]


def lease_store_down(office: Office) -> None:
    office.lease_cells.cut()


def roster_unreadable(office: Office) -> None:
    office.roster_problem = Unavailable("the pointer cannot be read")


def registry_down(office: Office) -> None:
    office.cells.cut()


@pytest.mark.proves("MB-01")
@pytest.mark.parametrize("breaks", [lease_store_down, roster_unreadable, registry_down])
def test_what_cannot_be_read_stamps_marks_and_deletes_nothing(breaks: Callable[[Office], None]) -> None:
    @in_virtual_time
    async def check() -> None:
        office = await Office("boss", "ceo", "cfo").open()
        await absent_for(office, "ceo")
        assert office.roster is not None
        office.roster -= {"cfo"}
        before = [await office.record(handle) for handle in ("boss", "ceo", "cfo")]
        breaks(office)
        with pytest.raises(Unavailable):
            await office.sweep()
        office.cells.heal()
        office.lease_cells.heal()
        assert [await office.record(handle) for handle in ("boss", "ceo", "cfo")] == before
        assert await office.there("ceo") == ALL_THREE
        office.roster_problem = None
        assert (await office.sweep()).retired == ["ceo"]

    check()


@pytest.mark.proves("MB-01")
@in_virtual_time
async def test_without_a_revision_a_sweep_is_silent_and_does_nothing() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    office.roster = None
    with capture_logs() as logs:
        report = await office.sweep()
    assert (report.line(), report.errors, logs) == ("", [], [])
    assert await office.there("ceo") == ALL_THREE


@pytest.mark.proves("MB-17")
@in_virtual_time
async def test_a_complete_registry_gets_no_record_and_a_seat_without_one_is_registered() -> None:
    office = await Office("boss", "ceo").open()
    await office.mailboxes.ensure(["boss", "ceo"])
    office.cells.calls.clear()
    assert (await office.sweep()).line() == ""
    assert [call for call in office.cells.calls if call.verb in ("create", "replace", "remove")] == []
    office.add("new")
    assert (await office.sweep()).registered == ["new"]
    record = await office.record("new")
    assert record is not None and record.is_clean


@in_virtual_time
async def test_a_mailbox_that_only_the_broker_knows_is_found_and_retired_a_grace_later() -> None:
    office = await Office("boss").open()
    for subscription in topics.mailbox("ghost"):
        await office.mail.ensure_subscription(subscription)
    stranger = Subscription(topics.inbox("ghost").topic, "somebody-else")
    await office.mail.ensure_subscription(stranger)
    await office.mail.ensure_subscription(Subscription("crewlet.agent.lonely.inbox", "somebody-else"))
    with capture_logs() as logs:
        assert (await office.sweep()).stamped == ["ghost"]
    assert "seat_mailbox_discovered" in [line["event"] for line in logs]
    await office.clock.sleep(GRACE_S)
    assert (await office.sweep()).retired == ["ghost"]
    assert await office.there("ghost") == []
    assert await office.waiting(stranger) is not None


@pytest.mark.proves("MB-18")
@in_virtual_time
async def test_a_listing_that_fails_postpones_the_discovery_and_nothing_else() -> None:
    office = await Office("boss", "ceo", "cfo").open()
    await absent_for(office, "ceo")
    for subscription in topics.mailbox("ghost"):
        await office.mail.ensure_subscription(subscription)
    office.roster = frozenset({"boss"})
    office.before = refusing("list_subscriptions")
    report = await office.sweep()
    assert (report.retired, report.errors) == (["ceo"], [])
    assert await office.record("ghost") is None
    office.before = None
    assert (await office.sweep()).stamped == ["ghost"]


@in_virtual_time
async def test_two_sweeps_at_once_retire_a_mailbox_once() -> None:
    office = await Office("boss", "ceo", "cfo").open()
    await absent_for(office, "ceo", "cfo")
    reports = await asyncio.gather(*(office.sweeper(f"n{number}").sweep() for number in range(4)))
    assert sorted(handle for report in reports for handle in report.retired) == ["ceo", "cfo"]
    assert await office.there("ceo") == await office.there("cfo") == []


@in_virtual_time
async def test_a_part_of_a_mailbox_that_the_broker_lost_is_made_again() -> None:
    office = await Office("boss").open()
    await office.mailboxes.ensure(["boss"])
    await office.mail.delete_subscription(topics.control("boss"))
    assert (await office.sweep()).restored == ["boss"]
    assert await office.there("boss") == ALL_THREE


@in_virtual_time
async def test_a_record_that_cannot_be_read_is_neither_judged_nor_written_over() -> None:
    office = await Office("boss").open()
    await office.mailboxes.ensure(["boss", "ceo"])
    record = await office.record("ceo")
    assert record is not None
    await office.cells.replace("ceo", b"{", expect=record.version)
    with capture_logs() as logs:
        assert (await office.sweep()).line() == ""
    assert [line["event"] for line in logs] == ["seat_mailbox_record_unreadable"]
    assert await office.there("ceo") == ALL_THREE


@in_virtual_time
async def test_a_broker_that_is_silent_in_the_middle_of_a_sweep_keeps_no_duty_from_beating_for_a_lease_ttl() -> None:
    office = await Office("boss").open()
    await office.mailboxes.ensure(["boss"])

    async def never(request: str) -> None:
        if request == "list_subscriptions":
            await asyncio.sleep(10 * TTL_S)

    office.before = never
    turned_at = [office.clock.elapsed()]
    assert (await office.sweeper().sweep(lambda: turned_at.append(office.clock.elapsed()))).errors == []
    assert max(later - earlier for earlier, later in pairwise(turned_at)) == TTL_S / 2
