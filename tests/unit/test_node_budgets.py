"""Budgets on whole nodes over twins, in virtual time."""

from dataclasses import replace
from datetime import UTC

from node_rig import Fleet

from crewlet.company.budgets import Budget
from crewlet.company.model import Company, Seat
from crewlet.mail.screening import BUDGET_WINDOW
from crewlet.node.assembly import Node
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.budget import Caps
from crewlet.turns.budgets import BUDGETS_BUCKET, Budgets


async def _spender(fleet: Fleet, node: Node) -> Budgets:
    """The counters as another process charges them."""

    def caps(spender: str) -> Caps:
        seat = node.company().seat(spender)
        return Caps(day=seat.budget.day) if seat is not None else Caps()

    return Budgets(await fleet.store.open(BUDGETS_BUCKET), caps, lambda: UTC)


def _with_caps(company: Company, day: int) -> Company:
    return replace(company, seats=tuple(Seat(seat.handle, budget=Budget(day=day)) for seat in company.seats))


@in_virtual_time
async def test_a_seat_over_its_cap_holds_its_mail_wherever_it_goes_until_the_cap_is_raised() -> None:
    fleet = Fleet(["alice"])
    fleet.company = _with_caps(fleet.company, 100)
    one = await fleet.node("n1")
    await fleet.until(lambda: fleet.holder("alice"), "alice is held")
    await (await _spender(fleet, one)).charge("alice", 100)
    await fleet.send("alice", "m1")
    await fleet.until(lambda: BUDGET_WINDOW in one.seats.holds("alice"), "the inbox is held")
    two = await fleet.node("n2")
    await fleet.stop("n1")
    await fleet.until(lambda: fleet.holder("alice") == "n2", "alice moved")
    await fleet.until(lambda: BUDGET_WINDOW in two.seats.holds("alice"), "it is held there too")
    assert fleet.runs == []
    await (await _spender(fleet, two)).set_caps("alice", Caps(day=1000))
    await fleet.until(lambda: BUDGET_WINDOW not in two.seats.holds("alice"), "the hold is lifted", bound_s=2.0)
    await fleet.until(lambda: fleet.finished("m1"), "the mail is worked")
    await fleet.close()


@in_virtual_time
async def test_mail_that_was_deferred_for_its_budget_goes_on_at_once_when_the_cap_is_raised() -> None:
    fleet = Fleet(["alice"])
    fleet.company = _with_caps(fleet.company, 100)
    one = await fleet.node("n1")
    await fleet.until(lambda: fleet.holder("alice"), "alice is held")
    budgets = await _spender(fleet, one)
    await budgets.charge("alice", 100)
    for mail_id in ("m1", "m2", "m3", "m4"):
        await fleet.send("alice", mail_id)
        await fleet.until(lambda: BUDGET_WINDOW in one.seats.holds("alice"), "the inbox is held")
        await budgets.reset("alice")
        # Less than the time between two renewals.
        await fleet.until(lambda mail_id=mail_id: fleet.finished(mail_id), "the mail is worked", bound_s=1.0)
        await budgets.charge("alice", 100)
    await fleet.close()


@in_virtual_time
async def test_another_document_with_a_higher_cap_lifts_the_hold() -> None:
    fleet = Fleet(["alice", "bob"])
    fleet.company = _with_caps(fleet.company, 100)
    one = await fleet.node("n1")
    await fleet.until(lambda: fleet.holder("alice") and fleet.holder("bob"), "both are held")
    await (await _spender(fleet, one)).charge("alice", 100)
    await fleet.send("alice", "m1")
    await fleet.send("bob", "m2")
    await fleet.until(lambda: BUDGET_WINDOW in one.seats.holds("alice"), "the inbox is held")
    await fleet.until(lambda: fleet.finished("m2"), "another seat works on")
    assert one.health().held_back == {"alice": BUDGET_WINDOW}
    await one.adopt(_with_caps(fleet.company, 1000))
    await fleet.until(lambda: fleet.finished("m1"), "the mail is worked")
    await fleet.close()
