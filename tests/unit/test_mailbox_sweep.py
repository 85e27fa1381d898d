"""Retiring mailboxes: the driver over faulty cells and a twin broker, in virtual time."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest
from mailbox_rig import ALL_THREE, TTL_S, Office, absent_for, die_half_way, post, refusing
from structlog.testing import capture_logs

from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.mail.retirement import GRACE_S, RESUME_AFTER_S
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import NoMailbox, Subscription
from crewlet.seats.lease import Granted, node_resource, seat_resource
from crewlet.seats.leases import LeaseStore
from crewlet.testing.faults import Fault
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


@pytest.mark.proves("MB-01")
@in_virtual_time
async def test_a_lease_store_that_fails_at_the_claim_leaves_no_mark() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    office.lease_cells.next("create", Fault.LOST)
    assert (await office.sweep()).errors != []
    record = await office.record("ceo")
    assert record is not None and record.retiring_since is None
    assert await office.there("ceo") == ALL_THREE


@in_virtual_time
async def test_a_seat_that_came_back_while_its_lease_was_claimed_is_left_alone() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    asked = 0

    async def roster() -> frozenset[str]:
        nonlocal asked
        asked += 1
        return frozenset({"boss"}) if asked == 1 else frozenset({"boss", "ceo"})

    office._roster = roster  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    assert (await office.sweeper().sweep()).retired == []
    assert asked == 2
    assert await office.there("ceo") == ALL_THREE


@in_virtual_time
async def test_a_seat_that_a_node_still_holds_is_kept_until_it_is_released() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    assert await office.claim("ceo")
    with capture_logs() as logs:
        report = await office.sweep()
    assert (report.held, report.retired) == (["ceo"], [])
    held = next(line for line in logs if line["event"] == "seat_mailbox_retirement_held")
    assert (held["refused"], held["holder"]) == ("held", "n9:1")
    assert await office.there("ceo") == ALL_THREE
    await office.release("ceo")
    assert (await office.sweep()).retired == ["ceo"]


@in_virtual_time
async def test_a_node_of_a_lower_lease_protocol_holds_retirement_up_and_the_log_says_so() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    older = LeaseStore(office.lease_cells, office.epochs, clock=office.clock, entropy=SystemEntropy(), protocol=3)
    assert isinstance(await older.claim(node_resource("old"), "old:1"), Granted)
    with capture_logs() as logs:
        assert (await office.sweep()).held == ["ceo"]
    assert [line["refused"] for line in logs if line["event"] == "seat_mailbox_retirement_held"] == ["protocol"]
    assert await office.there("ceo") == ALL_THREE


@pytest.mark.proves("MB-03")
@in_virtual_time
async def test_a_seat_is_not_to_be_had_while_its_mailbox_is_deleted_and_is_right_after() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    claims: list[bool] = []
    holders: list[str] = []

    async def claim_meanwhile(request: str) -> None:
        if request == "delete_subscription":
            claims.append(await office.claim("ceo"))
            lease = await office.leases.get(seat_resource("ceo"))
            holders.append(lease.owner if lease else "")

    office.before = claim_meanwhile
    assert (await office.sweep()).retired == ["ceo"]
    assert claims == [False, False, False]
    assert {holder.partition(":")[0] for holder in holders} == {"n1"} and "n1:1" not in holders
    assert await office.claim("ceo")


@pytest.mark.proves("MB-06")
@pytest.mark.parametrize("is_back", [False, True])
def test_a_mark_is_left_alone_for_a_quarter_of_an_hour_and_then_resumed(is_back: bool) -> None:
    @in_virtual_time
    async def check() -> None:
        office = await Office("boss", "ceo").open()
        await absent_for(office, "ceo")
        await die_half_way(office, "ceo")
        marked = await office.record("ceo")
        if is_back:
            office.add("ceo")
        for wait_s in (60.0, RESUME_AFTER_S - 120.0):
            await office.clock.sleep(wait_s)
            assert (await office.sweep()).line() == ""
            assert await office.record("ceo") == marked
        assert await office.there("ceo") == ALL_THREE[1:]
        await office.clock.sleep(60)
        with capture_logs() as logs:
            report = await office.sweep()
        events = [line["event"] for line in logs]
        if is_back:
            assert report.returned == ["ceo"] and "seat_mailbox_returned" in events
        else:
            assert report.retired == ["ceo"] and "seat_mailbox_retirement_resumed" in events
            assert await office.there("ceo") == [] and await office.record("ceo") is None

    check()


@pytest.mark.proves("MB-16")
@in_virtual_time
async def test_the_inbox_of_a_returned_seat_whose_retirement_died_is_made_again() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    await die_half_way(office, "ceo")
    office.add("ceo")
    await office.clock.sleep(RESUME_AFTER_S)
    await office.sweep()
    assert await office.there("ceo") == ALL_THREE
    record = await office.record("ceo")
    assert record is not None and record.is_clean


@pytest.mark.proves("MB-07")
@in_virtual_time
async def test_a_retirement_whose_seat_was_taken_over_puts_the_mailbox_back_and_counts_nothing() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")

    async def take_over(request: str) -> None:
        record = await office.record("ceo")
        if request == "delete_subscription" and record is not None and record.retiring_since is not None:
            await office.registry.update(record.returned())

    office.before = take_over
    with capture_logs() as logs:
        report = await office.sweep()
    office.before = None
    assert report.retired == []
    assert "seat_mailbox_restored" in [line["event"] for line in logs]
    assert await office.there("ceo") == ALL_THREE


@pytest.mark.proves("MB-07")
@in_virtual_time
async def test_a_retirement_that_a_peer_marked_as_its_own_restores_nothing() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")

    async def mark_as_well(request: str) -> None:
        record = await office.record("ceo")
        assert record is not None
        if request == "delete_subscription" and record.retiring_by != "n2:retire-b":
            await office.registry.update(record.marked(await office.now(), "n2:retire-b"))

    office.before = mark_as_well
    assert (await office.sweep()).retired == []
    office.before = None
    assert await office.there("ceo") == []


@pytest.mark.proves("MB-09")
@in_virtual_time
async def test_a_mark_carries_the_time_it_was_written() -> None:
    office = await Office("boss", "ceo", "cfo").open()
    await absent_for(office, "ceo", "cfo")
    began_at = await office.now()
    marks: dict[str, timedelta] = {}

    async def slowly(request: str) -> None:
        if request == "delete_subscription":
            for handle in ("ceo", "cfo"):
                record = await office.record(handle)
                if record is not None and record.retiring_since is not None and handle not in marks:
                    marks[handle] = record.retiring_since - began_at
            await office.clock.sleep(5)

    office.before = slowly
    assert (await office.sweep()).retired == ["ceo", "cfo"]
    assert marks == {"ceo": timedelta(0), "cfo": timedelta(seconds=15)}


@pytest.mark.proves("MB-15")
@in_virtual_time
async def test_a_delete_that_fails_leaves_the_absence_as_it_was_and_is_tried_again() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    before = await office.record("ceo")
    assert before is not None
    office.before = refusing("delete_subscription")
    report = await office.sweep()
    assert report.retired == [] and len(report.errors) == 1
    record = await office.record("ceo")
    assert record is not None and record.version > before.version
    assert (record.absent_since, record.retiring_since, record.retiring_by) == (before.absent_since, None, "")
    assert await office.leases.get(seat_resource("ceo")) is None
    office.before = None
    assert (await office.sweep()).retired == ["ceo"]


@in_virtual_time
async def test_a_seat_whose_mailbox_cannot_be_deleted_does_not_keep_the_others() -> None:
    office = await Office("boss", "ceo", "cfo").open()
    await absent_for(office, "ceo", "cfo")
    asked = 0

    async def refuse_first(request: str) -> None:
        nonlocal asked
        if request == "delete_subscription":
            asked += 1
            if asked == 1:
                raise Unavailable("not answered")

    office.before = refuse_first
    report = await office.sweep()
    assert (report.retired, len(report.errors)) == (["cfo"], 1)


@in_virtual_time
async def test_nothing_is_deleted_once_half_the_lease_is_over_however_long_the_sweep_stood_still() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    deleted_at: list[float] = []
    began_at = office.clock.elapsed()

    async def stand_still(request: str) -> None:
        if request == "delete_subscription":
            # What a stopped process does: it goes on exactly where it was, with every timer of it late.
            office.clock._offset_s += TTL_S if deleted_at else 0.0  # pyright: ignore[reportPrivateUsage]
            deleted_at.append(office.clock.elapsed() - began_at)

    office.before = stand_still
    report = await office.sweep()
    office.before = None
    assert len(deleted_at) == 2 and len(report.errors) == 1
    assert await office.there("ceo") == ALL_THREE[1:]


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


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNANSWERED])
def test_a_mark_that_is_undecided_deletes_nothing(fault: Fault) -> None:
    @in_virtual_time
    async def check() -> None:
        office = await Office("boss", "ceo").open()
        await absent_for(office, "ceo")
        office.cells.next("replace", fault)
        report = await office.sweep()
        assert (report.retired, len(report.errors)) == ([], 1)
        assert await office.there("ceo") == ALL_THREE
        assert await office.claim("ceo")
        await office.release("ceo")
        await office.clock.sleep(RESUME_AFTER_S)
        assert (await office.sweep()).retired == ["ceo"]

    check()


@in_virtual_time
async def test_a_retirement_whose_end_is_undecided_is_finished_by_a_later_sweep() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    office.cells.next("remove", Fault.LOST)
    assert len((await office.sweep()).errors) == 1
    assert await office.there("ceo") == []
    await office.clock.sleep(RESUME_AFTER_S)
    assert (await office.sweep()).retired == ["ceo"]
    assert await office.record("ceo") is None


@in_virtual_time
async def test_a_retirement_says_how_many_messages_it_deleted_and_keeps_the_number() -> None:
    office = await Office("boss", "ceo", "cfo").open()
    await absent_for(office, "ceo", "cfo")
    for message_id in ("m1", "m2"):
        await post(office, "ceo", message_id)
    await office.mail.publish(topics.control("ceo").topic, b"x", message_id="c1")
    report = await office.sweep()
    assert report.line() == "2 mailboxes retired, with 3 messages (ceo 3)"
    ceo, cfo = await office.retirements.last("ceo"), await office.retirements.last("cfo")
    assert ceo is not None and cfo is not None
    assert (ceo.messages, ceo.total, cfo.total) == ({"inbox": 2, "control": 1, "reflect": 0}, 3, 0)
    assert ceo.by.startswith("n1:retire-") and ceo.absent_since is not None and ceo.absent_since < ceo.at


@in_virtual_time
async def test_a_mailbox_whose_mail_cannot_be_counted_is_not_deleted() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    await post(office, "ceo")
    office.before = refusing("waiting")
    assert len((await office.sweep()).errors) == 1
    office.before = None
    assert await office.there("ceo") == ALL_THREE
    record = await office.record("ceo")
    assert record is not None and record.retiring_since is None
    assert (await office.sweep()).deleted == {"ceo": 1}


@in_virtual_time
async def test_a_retirement_that_died_half_way_counts_what_its_first_half_deleted() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    await post(office, "ceo")
    await die_half_way(office, "ceo")
    await office.mail.publish(topics.reflect("ceo").topic, b"x", message_id="r1")
    await office.clock.sleep(RESUME_AFTER_S)
    assert (await office.sweep()).deleted == {"ceo": 2}
    retired = await office.retirements.last("ceo")
    assert retired is not None and retired.messages == {"inbox": 1, "control": 0, "reflect": 1}


@in_virtual_time
async def test_a_retirement_whose_number_is_not_on_record_says_it_and_is_finished_later() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    await post(office, "ceo")
    office.retirement_cells.next("create", Fault.LOST)
    with capture_logs() as logs:
        assert len((await office.sweep()).errors) == 1
    unrecorded = [line for line in logs if line["event"] == "seat_mailbox_retirement_unrecorded"]
    assert [line["messages"] for line in unrecorded] == [1]
    assert await office.record("ceo") is not None
    await office.clock.sleep(RESUME_AFTER_S)
    assert (await office.sweep()).deleted == {"ceo": 1}
    retired = await office.retirements.last("ceo")
    assert retired is not None and retired.total == 1


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
