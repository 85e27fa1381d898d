"""Many short-lived programs beside the ones that seats hold: none is left, dead or alive, and each end is proven."""

import asyncio
import random
import sys
from contextlib import suppress

import pytest
from process_kit import ENV, children, is_running, until

from crewlet.adapters.process import LocalPrograms
from crewlet.ports.programs import Program, ProgramSpec

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(600),
]

SEATS, ROUNDS, SIDE_BY_SIDE = 20, 500, 10
PROOF_S = 60.0
"""Far beyond what an end takes on a busy machine: one that is not proven by then never is."""
STUBBORN = "trap '' TERM; (sleep 600 &) ; setsid sleep 600 & sleep 600"


async def ended(program: Program, how: str) -> None:
    """End it in one of the ways in which turns end. An end that is not proven in time raises."""
    if how == "cancelled":
        ending = asyncio.create_task(program.end(grace_s=5.0))
        await asyncio.sleep(0)
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending
    await program.end(grace_s=0.01 if how == "asked" else 0.0)


async def test_five_hundred_rounds_of_children_leave_no_zombie_and_harm_no_seats_program() -> None:
    before = children()
    programs = LocalPrograms(proof_s=PROOF_S)
    seats = [await programs.spawn(ProgramSpec(("sleep", "3600"), ENV)) for _ in range(SEATS)]
    draw = random.Random(7)

    async def rounds() -> None:
        for _ in range(ROUNDS // SIDE_BY_SIDE):
            script = draw.choice(("true", "sleep 600", STUBBORN))
            program = await programs.spawn(ProgramSpec(("sh", "-c", script), ENV))
            await asyncio.sleep(draw.choice((0.0, 0.002, 0.01)))
            await ended(program, draw.choice(("killed", "asked", "cancelled")))

    try:
        await asyncio.gather(*(rounds() for _ in range(SIDE_BY_SIDE)))
        assert programs.running == {program.pid for program in seats}
        assert all(is_running(program.pid) for program in seats)
    finally:
        for program in seats:
            await program.end()
    assert programs.running == frozenset()
    await until(lambda: children() <= before)
