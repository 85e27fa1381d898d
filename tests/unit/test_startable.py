"""What a seat's turns begin with, looked for again after a start that failed."""

import structlog
from dispatch_desk import Desk

from crewlet.ports.programs import ProgramNotStarted
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.runners.startable import Startable


@in_virtual_time
async def test_what_is_looked_for_after_a_turn_is_logged_without_the_names_of_that_turn() -> None:
    desk = Desk()
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ProgramNotStarted("it is not there")

    startable = Startable("alice", clock=desk.clock)
    startable.start(look, desk.new_fence(7), lambda: None)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        await desk.clock.sleep(1.0)
        with structlog.contextvars.bound_contextvars(turn_id="t1"):
            startable.failed("it was not there")
        await desk.clock.sleep(60.0)
    assert [line["event"] for line in logs] == ["program_not_startable", "program_startable"]
    assert not any("turn_id" in line for line in logs)
    await startable.end()
