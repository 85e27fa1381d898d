"""What a node says of a seat whose teardown it cannot prove."""

import pytest
from node_rig import TTL_S, Fleet

from crewlet.testing.virtual import in_virtual_time


@pytest.mark.proves("TB-07")
@in_virtual_time
async def test_a_seat_whose_detach_is_not_proven_is_told_with_its_seconds_and_not_among_the_held_ones() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    assert (node.health().seats, node.health().unproven_seconds) == (("a", "b"), None)
    fleet.refuse("detach")
    assert not await node.host.give_back("a", "unprepared")
    await fleet.clock.sleep(5)
    health = node.health()
    assert health.seats == ("b",)
    assert health.unproven_seconds is not None and list(health.unproven_seconds) == ["a"]
    assert health.unproven_seconds["a"] == pytest.approx(5, abs=1)
    fleet.allow()
    await fleet.until(lambda: node.health().unproven_seconds is None, "it is proven", TTL_S)
    await fleet.until(lambda: node.health().seats == ("a", "b"), "it is taken again")
    await fleet.close()
