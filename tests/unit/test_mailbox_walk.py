"""Making the mailboxes of a company beside a sweep that may be retiring them, in virtual time."""

import asyncio

import pytest
from mailbox_rig import ALL_THREE, TTL_S, Office, absent_for, die_half_way, post, refusing
from structlog.testing import capture_logs

from crewlet.mail import topics
from crewlet.mail.retirement import GRACE_S, TAKE_OVER_AFTER_S
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault
from crewlet.testing.virtual import in_virtual_time, settle


@pytest.mark.proves("SU-11")
@in_virtual_time
async def test_each_seat_is_registered_before_its_subscriptions_are_made() -> None:
    office = await Office("boss", "ceo").open()
    seen: list[bool] = []

    async def look(request: str) -> None:
        if request == "ensure_subscription":
            seen.append(await office.record("ceo") is not None)

    office.before = look
    assert await office.mailboxes.ensure(["ceo"]) == 3
    assert seen == [True, True, True]


@pytest.mark.proves("SU-11")
@in_virtual_time
async def test_a_registration_that_fails_does_not_keep_the_mailbox_from_being_made() -> None:
    office = await Office("boss", "ceo").open()
    office.cells.next("create", Fault.LOST)
    with capture_logs() as logs:
        assert await office.mailboxes.ensure(["ceo"]) == 3
    assert [line["event"] for line in logs] == ["seat_mailbox_unregistered"]
    office.cells.cut()
    assert await office.mailboxes.ensure(["cfo"]) == 3
    office.cells.heal()
    assert (await office.sweep()).registered == ["boss", "ceo"]


@pytest.mark.proves("SU-04")
@in_virtual_time
async def test_a_store_and_a_broker_that_are_away_are_told_of_once_a_ttl_however_often_they_are_asked() -> None:
    office = await Office("boss", "ceo").open()
    office.cells.cut()
    office.before = refusing("list_subscriptions", "ensure_subscription")
    with capture_logs() as logs:
        making = asyncio.create_task(office.mailboxes.ensure_until_made(["boss", "ceo"]))
        await asyncio.sleep(TTL_S - 1)
        assert logs == []
        await asyncio.sleep(2 * TTL_S)
        assert [line["event"] for line in logs] == ["seat_mailboxes_not_made"] * 2
        logs.clear()
        office.before = refusing("list_subscriptions")
        assert await making == 6
    unregistered = [line["seat"] for line in logs if line["event"] == "seat_mailbox_unregistered"]
    assert sorted(unregistered) == ["boss", "ceo"]
    assert {line["event"] for line in logs} == {
        "seat_mailbox_unregistered",
        "seat_mailbox_registry_unavailable",
        "seat_mailboxes_unlisted",
    }


@pytest.mark.proves("SU-04")
@in_virtual_time
async def test_a_registration_that_is_undecided_beside_a_mailbox_that_cannot_be_made_is_told_when_it_is_made() -> None:
    office = await Office("boss", "ceo").open()
    for _ in range(4):
        office.cells.next("create", Fault.LOST)
    office.before = refusing("ensure_subscription")
    with capture_logs() as logs:
        making = asyncio.create_task(office.mailboxes.ensure_until_made(["ceo"]))
        await asyncio.sleep(1)
        assert logs == []
        office.before = None
        assert await making == 3
    assert [line["event"] for line in logs] == ["seat_mailbox_unregistered"]


@pytest.mark.proves("SU-05")
@in_virtual_time
async def test_a_handle_that_left_and_returns_gets_its_mailbox_again_from_the_same_node() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    assert (await office.sweep()).retired == ["ceo"]
    office.add("ceo")
    assert await office.mailboxes.ensure(["boss", "ceo"]) == 3
    assert await office.there("ceo") == ALL_THREE
    record = await office.record("ceo")
    assert record is not None and record.is_clean


@in_virtual_time
async def test_a_node_that_wants_a_mailbox_back_forgets_the_absence_so_that_no_sweep_can_retire_it() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    behind = office.sweeper("behind")
    assert await office.mailboxes.ensure(["ceo"]) == 0
    assert (await behind.sweep()).stamped == ["ceo"]
    assert await office.there("ceo") == ALL_THREE


@in_virtual_time
async def test_a_retirement_under_way_is_waited_for_and_the_new_mailbox_is_empty() -> None:
    office = await Office("boss", "ceo").open()
    await office.mailboxes.ensure(["boss", "ceo"])
    await post(office, "ceo")
    await office.remove("ceo")
    await office.clock.sleep(GRACE_S)
    may_go_on = asyncio.Event()

    async def wait(request: str) -> None:
        if request == "delete_subscription":
            await may_go_on.wait()

    office.before = wait
    sweeping = asyncio.create_task(office.sweep())
    await settle()
    walking = asyncio.create_task(office.mailboxes.ensure_until_made(["ceo", "new"]))
    await asyncio.sleep(3)
    assert await office.there("new") == ALL_THREE
    assert not walking.done()
    may_go_on.set()
    assert (await sweeping).retired == ["ceo"]
    assert await walking == 3
    backlog = await office.waiting(topics.inbox("ceo"))
    assert backlog is not None and backlog.waiting == 0
    assert await office.there("ceo") == ALL_THREE


@in_virtual_time
async def test_a_retirement_that_died_is_taken_over_after_twice_its_budget() -> None:
    office = await Office("boss", "ceo").open()
    await absent_for(office, "ceo")
    await die_half_way(office, "ceo")
    marked_at = office.clock.elapsed()
    with capture_logs() as logs:
        await office.mailboxes.ensure_until_made(["ceo"])
    assert TAKE_OVER_AFTER_S <= office.clock.elapsed() - marked_at <= TAKE_OVER_AFTER_S + 6
    assert "seat_mailbox_retirement_taken_over" in [line["event"] for line in logs]
    assert await office.there("ceo") == ALL_THREE
    record = await office.record("ceo")
    assert record is not None and record.is_clean


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNANSWERED])
def test_an_absence_that_is_not_known_to_be_forgotten_is_asked_again_and_the_mailbox_is_there(fault: Fault) -> None:
    @in_virtual_time
    async def check() -> None:
        office = await Office("boss", "ceo").open()
        await absent_for(office, "ceo")
        await office.mail.delete_subscription(topics.inbox("ceo"))
        office.cells.next("replace", fault)
        with pytest.raises(Unavailable):
            await office.mailboxes.ensure(["ceo"])
        assert await office.there("ceo") == ALL_THREE
        await office.mailboxes.ensure(["ceo"])
        record = await office.record("ceo")
        assert record is not None and record.is_clean

    check()
