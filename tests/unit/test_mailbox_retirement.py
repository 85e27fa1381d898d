"""Retiring one mailbox, under the lease of its seat, over faulty cells and a twin broker, in virtual time."""

from datetime import timedelta

import pytest
from mailbox_rig import ALL_THREE, TTL_S, Office, absent_for, die_half_way, post, refusing
from structlog.testing import capture_logs

from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.mail.retirement import RESUME_AFTER_S
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import Granted, node_resource, seat_resource
from crewlet.seats.leases import LeaseStore
from crewlet.testing.faults import Fault
from crewlet.testing.virtual import in_virtual_time


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
async def test_a_delete_that_is_refused_leaves_the_absence_as_it_was_and_is_tried_again() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    before = await office.record("ceo")
    assert before is not None
    office.wire.refuses.add("delete_subscription")
    report = await office.sweep()
    assert report.retired == [] and len(report.errors) == 1
    record = await office.record("ceo")
    assert record is not None and record.version > before.version
    assert (record.absent_since, record.retiring_since, record.retiring_by) == (before.absent_since, None, "")
    assert await office.leases.get(seat_resource("ceo")) is None
    office.wire.refuses.clear()
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
