"""A node that is given another company document while it runs."""

import asyncio
from dataclasses import replace

import structlog
from node_rig import Fleet

from crewlet.company.model import Company, Placement, Seat
from crewlet.mail import topics
from crewlet.ports.errors import Unavailable
from crewlet.testing.virtual import in_virtual_time


def _company(*seats: Seat) -> Company:
    return Company("acme", seats)


@in_virtual_time
async def test_a_new_seat_is_taken_and_one_that_left_is_given_back_before_the_next_tick() -> None:
    fleet = Fleet(("stays", "leaves"))
    node = await fleet.node("n1")
    term = node.host.held()["stays"]
    began_at = fleet.clock.elapsed()
    await node.adopt(_company(Seat("stays"), Seat("comes")))
    await fleet.until(lambda: set(node.host.held()) == {"stays", "comes"}, "the seats of the new company")
    assert fleet.clock.elapsed() - began_at < 2.0
    assert node.host.held()["stays"] == term
    await fleet.close()


@in_virtual_time
async def test_a_seat_that_is_placed_elsewhere_goes_there() -> None:
    fleet = Fleet(("moves",))
    first = await fleet.node("n1")
    second = await fleet.node("n2")
    assert fleet.holder("moves") == "n1"
    moved = _company(Seat("moves", placement=Placement(node="n2")))
    await second.adopt(moved)
    await first.adopt(moved)
    await fleet.until(lambda: fleet.holder("moves") == "n2", "the seat on its new node", bound_s=10.0)
    await fleet.close()


@in_virtual_time
async def test_a_new_seat_has_its_mailbox_before_anybody_here_can_write_to_it() -> None:
    fleet = Fleet(("old",))
    node = await fleet.node("n1")
    fleet.refuse("ensure_subscription")
    company = _company(Seat("old"), Seat("new"))
    await node.adopt(company)
    assert topics.inbox("new") not in fleet.broker.listing(">"), "its mailbox could not be made yet"
    fleet.allow()
    await fleet.until(lambda: topics.inbox("new") in fleet.broker.listing(">"), "the mailbox, made later")
    later = replace(company, seats=(*company.seats, Seat("newest")))
    await node.adopt(later)
    assert node.company() is later and topics.inbox("newest") in fleet.broker.listing(">")
    await fleet.close()


class SlowFleet(Fleet):
    """A broker that takes its time to answer nothing."""

    is_slow = False

    async def _fault(self, request: str) -> None:
        if self.is_slow:
            await self.clock.sleep(3.0)
            raise Unavailable(f"{request} is not answered")


@in_virtual_time
async def test_a_company_that_comes_while_the_node_ends_leaves_nothing_running() -> None:
    fleet = SlowFleet(("old",))
    node = await fleet.node("n1")
    fleet.is_slow = True
    adopting = asyncio.create_task(node.adopt(_company(Seat("old"), Seat("new"))))
    await fleet.clock.sleep(1.0)
    await node.drain()
    before = asyncio.all_tasks() - {adopting}
    with structlog.testing.capture_logs() as logs:
        await node.close()
        await adopting
        await fleet.clock.sleep(60.0)
    assert [log for log in logs if log["event"].startswith("task_")] == []
    assert {task for task in before if not task.done()} == {asyncio.current_task()}
    await node.adopt(_company())
    assert len(node.company().seats) == 1
