"""A held seat on its node: what is set up, and what must be seen to be gone before its lease may go."""

import pytest
from node_rig import TTL_S, Fleet

from crewlet.mail import topics
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import DetachUnproven
from crewlet.ports.term import Term
from crewlet.testing.virtual import in_virtual_time


@in_virtual_time
async def test_when_a_release_returns_no_pull_of_the_seat_is_open_and_its_mail_waits_for_the_next() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    inbox = topics.inbox("a")
    term = node.host.term("a")
    assert term is not None
    await fleet.clock.sleep(1)
    backlog = await node.commands.outbox.mail.waiting(inbox)
    assert backlog is not None and backlog.open_pulls == 1
    await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    await fleet.send("a", "later")
    backlog = await node.commands.outbox.mail.waiting(inbox)
    assert backlog is not None and (backlog.open_pulls, backlog.waiting, backlog.in_hand) == (0, 1, 0)
    assert fleet.runs == []
    await fleet.close()


@pytest.mark.proves("RL-13")
@in_virtual_time
async def test_a_detach_that_the_broker_does_not_confirm_keeps_the_lease_and_runs_nothing_meanwhile() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    await fleet.node("n2")
    term = node.host.term("a")
    assert term is not None
    fleet.refuse("detach")
    with pytest.raises(DetachUnproven):
        await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    await fleet.send("a", "meanwhile")
    await fleet.clock.sleep(TTL_S)
    assert fleet.runs == []
    lease = await node.leases.get("seat:a")
    assert lease is not None and lease.owner == "n1:1"
    fleet.allow()
    await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    await fleet.close()


@in_virtual_time
async def test_a_release_of_another_tenure_touches_nothing() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    await node.seats.on_release(Term("seat:a", "n1:1", 99), reason="lease_lost", is_voluntary=False)
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.finished("one"), "it still runs")
    await fleet.close()


@in_virtual_time
async def test_a_seat_whose_lease_nears_its_end_is_ended_and_takes_no_more_mail() -> None:
    fleet = Fleet(("a",), turn_s=1000)
    node = await fleet.node("n1")
    term = node.host.term("a")
    assert term is not None
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.runs, "it runs")
    assert node.health().in_flight == 1
    await node.seats.stop_programs(term)
    assert node.health().in_flight == 0
    assert fleet.runs[0].ended_at is None
    await fleet.close()


@in_virtual_time
async def test_a_seat_that_the_company_does_not_have_is_not_established() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    with pytest.raises(Misuse, match="no seat 'ghost'"):
        await node.seats.on_acquire(Term("seat:ghost", "n1:1", 1), 1e9)
    await fleet.close()


@in_virtual_time
async def test_an_acquire_without_a_broker_leaves_nothing_attached() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    term = node.host.term("a")
    assert term is not None
    await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    fleet.refuse("attach")
    with pytest.raises(Unavailable):
        await node.seats.on_acquire(term, 1e9)
    fleet.allow()
    backlog = await node.commands.outbox.mail.waiting(topics.inbox("a"))
    assert backlog is not None and backlog.open_pulls == 0
    await fleet.close()


@in_virtual_time
async def test_why_a_seats_last_turn_broke_shows_until_one_is_finished() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    fleet.break_next = "the model said no"
    await fleet.send("a", "one")
    await fleet.until(lambda: node.health().last_error, "it broke")
    assert node.health().last_error == {"a": "the model said no"}
    await fleet.until(lambda: fleet.finished("one"), "it came back and finished")
    await fleet.until(lambda: node.health().last_error is None, "nothing is wrong any more")
    await fleet.close()
