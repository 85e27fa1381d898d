"""A seat whose only node is not there."""

import pytest
from node_rig import TTL_S, Fleet

from crewlet.company.model import Company, Placement, Seat
from crewlet.mail import topics
from crewlet.testing.virtual import in_virtual_time


@pytest.mark.proves("SU-01")
@in_virtual_time
async def test_mail_of_a_seat_that_is_pinned_to_a_node_which_is_not_there_waits_for_that_node() -> None:
    fleet = Fleet(())
    fleet.company = Company("acme", (Seat("a"), Seat("pinned", placement=Placement(node="n2"))))
    node = await fleet.node("n1")
    for number in range(3):
        await fleet.send("pinned", f"m{number}")
    await fleet.clock.sleep(5 * TTL_S)
    assert list(node.host.held()) == ["a"]
    backlog = await node.commands.outbox.mail.waiting(topics.inbox("pinned"))
    assert backlog is not None and (backlog.waiting, backlog.in_hand) == (3, 0)
    await fleet.node("n2")
    await fleet.until(lambda: fleet.finished("m2"), "it ran where it belongs")
    assert [(run.node, run.triggers) for run in fleet.runs] == [("n2", (f"m{number}",)) for number in range(3)]
    await fleet.close()
