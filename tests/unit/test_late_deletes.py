"""Deletes of a retirement that nobody answers, and that land when it is over, in virtual time."""

import asyncio
from itertools import pairwise

import pytest
from mailbox_rig import ALL_THREE, TTL_S, Office, absent_for, post, refusing
from structlog.testing import capture_logs

from crewlet.mail import topics
from crewlet.mail.registry import MailboxRecord
from crewlet.mail.retirement import RESUME_AFTER_S, TAKE_OVER_AFTER_S
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import seat_resource
from crewlet.testing.virtual import in_virtual_time, settle

DELETE = "delete_subscription"


async def left_in_doubt(office: Office, handle: str) -> None:
    """A sweep retires a mailbox, and ends while its first delete is still on its way."""
    await absent_for(office, handle)
    office.wire.holds.add(DELETE)
    report = await office.sweep()
    office.wire.holds.clear()
    assert (report.retired, len(report.errors), len(office.wire.held)) == ([], 1, 1)


async def marked(office: Office, handle: str) -> MailboxRecord:
    record = await office.record(handle)
    assert record is not None and record.retiring_since is not None
    return record


@pytest.mark.proves("MB-15")
@in_virtual_time
async def test_a_delete_without_an_answer_keeps_the_mark_and_the_lease_which_lapses() -> None:
    office = await Office("boss", "ceo").open()
    began_at = office.clock.elapsed()
    with capture_logs() as logs:
        await left_in_doubt(office, "ceo")
    assert "seat_mailbox_retirement_undecided" in [line["event"] for line in logs]
    record = await marked(office, "ceo")
    assert record.absent_since is not None and record.absent_since < record.retiring_since  # pyright: ignore[reportOperatorIssue]
    assert await office.there("ceo") == ALL_THREE
    lease = await office.leases.get(seat_resource("ceo"))
    assert lease is not None and lease.owner == record.retiring_by
    assert not await office.claim("ceo")
    await office.clock.sleep(TTL_S)
    assert await office.claim("ceo")
    assert office.clock.elapsed() - began_at > TTL_S


@pytest.mark.parametrize("lands_after_s", [1.0, TTL_S / 2 - 1, TAKE_OVER_AFTER_S - TTL_S / 2 - 1])
def test_a_late_delete_never_takes_the_mailbox_of_a_seat_that_came_back(lands_after_s: float) -> None:
    @in_virtual_time
    async def check() -> None:
        office = await Office("boss", "ceo").open()
        await left_in_doubt(office, "ceo")
        office.add("ceo")

        async def come_back() -> None:
            await office.mailboxes.ensure_until_made(["ceo"])
            await post(office, "ceo")

        coming = asyncio.create_task(come_back())
        await office.clock.sleep(lands_after_s)
        office.wire.deliver_held()
        await coming
        assert await office.there("ceo") == ALL_THREE
        backlog = await office.waiting(topics.inbox("ceo"))
        assert backlog is not None and backlog.waiting == 1
        record = await office.record("ceo")
        assert record is not None and record.is_clean

    check()


@in_virtual_time
async def test_no_node_holds_the_seat_while_a_delete_has_half_a_lease_to_arrive() -> None:
    office = await Office("boss", "ceo").open()
    await left_in_doubt(office, "ceo")
    office.add("ceo")
    ended_at = office.clock.elapsed()
    while not await office.claim("ceo"):
        await office.clock.sleep(1)
    assert TTL_S / 2 - 1 <= office.clock.elapsed() - ended_at <= TTL_S / 2 + 2


@in_virtual_time
async def test_a_retirement_that_was_left_in_doubt_is_finished_by_a_later_sweep_with_its_count() -> None:
    office = await Office("boss", "ceo").open()
    await office.mailboxes.ensure(["ceo"])
    await post(office, "ceo")
    await left_in_doubt(office, "ceo")
    office.wire.deliver_held()
    assert (await office.sweep()).line() == ""
    await office.clock.sleep(RESUME_AFTER_S)
    report = await office.sweep()
    assert (report.retired, report.deleted) == (["ceo"], {"ceo": 1})
    assert await office.there("ceo") == [] and await office.record("ceo") is None
    assert await office.leases.get(seat_resource("ceo")) is None


@in_virtual_time
async def test_a_sweep_that_is_stopped_while_a_delete_is_on_its_way_leaves_the_lease_and_the_mark() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    office.wire.holds.add(DELETE)
    sweeping = asyncio.create_task(office.sweep())
    await settle()
    assert len(office.wire.held) == 1
    sweeping.cancel()
    await asyncio.wait([sweeping])
    assert sweeping.cancelled()
    record = await marked(office, "ceo")
    lease = await office.leases.get(seat_resource("ceo"))
    assert lease is not None and lease.owner == record.retiring_by


@in_virtual_time
async def test_a_sweep_that_is_stopped_before_a_delete_has_left_gives_the_lease_back() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")

    async def never(request: str) -> None:
        if request == DELETE:
            await asyncio.Event().wait()

    office.before = never
    sweeping = asyncio.create_task(office.sweep())
    await settle()
    sweeping.cancel()
    await asyncio.wait([sweeping])
    assert await office.leases.get(seat_resource("ceo")) is None


@in_virtual_time
async def test_a_refusal_after_one_part_was_deleted_is_still_a_refusal() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")

    async def refuse_next(request: str) -> None:
        if request == DELETE:
            office.wire.refuses.add(DELETE)

    office.before = refuse_next
    assert len((await office.sweep()).errors) == 1
    record = await office.record("ceo")
    assert record is not None and record.retiring_since is None and record.absent_since is not None
    assert await office.leases.get(seat_resource("ceo")) is None
    assert await office.there("ceo") == ALL_THREE[1:]
    office.before = None
    office.wire.refuses.clear()
    assert (await office.sweep()).retired == ["ceo"]


@pytest.mark.proves("MB-07")
@in_virtual_time
async def test_a_retirement_in_doubt_puts_the_mailbox_back_where_its_seat_was_taken_over_meanwhile() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    office.wire.holds.add(DELETE)
    sweeping = asyncio.create_task(office.sweep())
    await settle()
    # As after a minute in which the sweeping process stood still.
    await office.registry.update((await marked(office, "ceo")).returned())
    office.wire.deliver_held()
    assert await office.there("ceo") == ALL_THREE[1:]
    with capture_logs() as logs:
        report = await sweeping
    assert report.retired == [] and len(report.errors) == 1
    assert "seat_mailbox_restored" in [line["event"] for line in logs]
    assert await office.there("ceo") == ALL_THREE


@pytest.mark.parametrize("silent", [DELETE, "ensure_subscription"])
def test_a_broker_that_is_silent_to_a_retirement_keeps_the_duty_beating(silent: str) -> None:
    @in_virtual_time
    async def check() -> None:
        office = await Office("boss", "ceo").open()
        await absent_for(office, "ceo")

        async def take_over(request: str) -> None:
            record = await office.record("ceo")
            if request == DELETE and record is not None and record.retiring_since is not None:
                await office.registry.update(record.returned())
            if request == silent:
                await asyncio.sleep(10 * TTL_S)
                raise Unavailable("not answered")

        office.before = take_over
        turned_at = [office.clock.elapsed()]
        report = await office.sweeper().sweep(lambda: turned_at.append(office.clock.elapsed()))
        turned_at.append(office.clock.elapsed())
        assert len(report.errors) == 1
        assert max(later - earlier for earlier, later in pairwise(turned_at)) <= TTL_S / 2

    check()


@in_virtual_time
async def test_an_answer_that_never_comes_does_not_keep_the_other_seats() -> None:
    office = await Office("boss", "ceo", "cfo").open()
    await absent_for(office, "ceo", "cfo")
    office.before = refusing(DELETE)
    report = await office.sweep()
    assert (report.retired, len(report.errors)) == ([], 2)
    assert [(await marked(office, handle)).handle for handle in ("ceo", "cfo")] == ["ceo", "cfo"]
