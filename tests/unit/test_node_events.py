"""The log of one node as it takes its seats and leaves, under the names and fields that operators read."""

import structlog
from node_rig import Fleet

from crewlet.testing.virtual import in_virtual_time


@in_virtual_time
async def test_a_loop_that_has_stopped_turning_is_in_the_health_of_its_node_and_one_that_turns_is_not() -> None:
    fleet = Fleet(("ann",))
    node = await fleet.node("n1")
    await fleet.clock.sleep(300.0)
    assert node.health().stall_lag_seconds is None
    node.beats.of("heartbeat").stamp(fleet.clock.elapsed() - 20.0)
    assert node.health().stall_lag_seconds == 20.0
    await fleet.close()


@in_virtual_time
async def test_a_node_tells_its_seats_and_its_leaving_in_order() -> None:
    fleet = Fleet(("ann",), roles=frozenset({"seats", "workers"}))
    with structlog.testing.capture_logs() as logs:
        await fleet.node("n1")
        await fleet.until(lambda: fleet.holder("ann") == "n1", "the seat is held")
        await fleet.stop("n1")
    told = [entry for entry in logs if entry["log_level"] == "info"]
    seat = [(e["event"], e["epoch"]) for e in told if e.get("seat") == "ann"]
    assert seat == [("seat_claimed", 1), ("inbox_attached", 1), ("seat_attached", 1), ("seat_detached", 1)]
    assert next(e for e in told if e["event"] == "inbox_attached")["elapsed_ms"] >= 0
    assert next(e for e in told if e["event"] == "seat_detached")["reason"] == "drain"
    leaving = [e["event"] for e in told if e["event"] in {"engine_draining", "seat_detached", "drain_complete"}]
    assert leaving == ["engine_draining", "seat_detached", "drain_complete"]
    assert [e["duty"] for e in told if e["event"] == "duty_released"] == ["maintenance", "scheduler"]
    assert told[-1]["event"] == "engine_stopped" and told[-1]["node"] == "n1"
