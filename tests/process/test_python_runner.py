"""Python seats with real workers: what their functions may do, and that nothing of them stays."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from process_kit import ENV, children, is_running, until
from seat_bench import DESK, SEATS, SeatBench

from crewlet.company.model import PythonRunner, Seat
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.errors import Fenced
from crewlet.turns.runners import ProgramBroke, PythonTurns
from crewlet.turns.turn import AgentNotReady, OutgoingMail, RoundUsage, TurnResult

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture
async def bench() -> AsyncIterator[SeatBench]:
    before = children()
    made = SeatBench()
    yield made
    if made.turns is not None:
        await made.turns.end()
    assert made.programs.running == frozenset()
    assert children() <= before


async def test_a_plain_function_works_turn_after_turn_in_one_process(bench: SeatBench) -> None:
    await bench.start("desk:plain")
    assert await bench.run("one") == TurnResult("delivered", "m1 at 7")
    assert await bench.run("two") == TurnResult("delivered", "m2 at 7")
    assert bench.sent == [OutgoingMail("bob", f"got {body}", conversation="c1") for body in ("one", "two")]
    (first, second) = (shown.split() for shown in bench.shown)
    assert (first[1], second[1]) == ("1", "2")
    assert first[3] == second[3]
    assert bench.spent == [RoundUsage(1, "test-model", 10, 5)] * 2


async def test_an_async_function_calls_tools_side_by_side_and_is_told_what_was_refused(bench: SeatBench) -> None:
    await bench.start("desk:asynchronous")
    for _ in range(2):
        assert await bench.run() == TurnResult("delivered", f"3 True {UnknownSeat('nobody', DESK)}")
    assert len({shown.split()[3] for shown in bench.shown}) == 1


async def test_an_object_with_an_async_call_will_do_and_runs_in_the_folder_of_its_module(bench: SeatBench) -> None:
    await bench.start("desk:handler")
    assert await bench.run() == TurnResult("delivered", "an object, in seats")


async def test_a_function_that_does_nothing_took_no_action(bench: SeatBench) -> None:
    await bench.start("desk:nothing")
    assert await bench.run() == TurnResult("no_action")


@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        ("raises", "function_raised", r"ValueError: no use \? for hi \(desk.py:\d+\)"),
        ("wrong", "function_raised", "the function returned a dict"),
        ("leaves", "function_exited", "SystemExit: 0"),
    ],
)
async def test_a_function_that_raises_breaks_its_turn_in_one_line_and_the_next_can_run(
    bench: SeatBench, function: str, kind: str, says: str
) -> None:
    await bench.start(f"desk:{function}")
    for _ in range(2):
        await bench.ready()
        with pytest.raises(ProgramBroke, match=says) as broke:
            await bench.run()
        assert broke.value.kind == kind
        assert "\n" not in str(broke.value)


@pytest.mark.parametrize(
    ("function", "body", "says"),
    [
        ("dies", "0", "exited with code 0 in the middle of the turn; it said: about to die"),
        ("dies", "3", "exited with code 3"),
        ("aborts", "", "ended by signal 11 in the middle of the turn; it said: "),
    ],
)
async def test_a_worker_that_dies_in_a_turn_is_named_and_another_takes_its_place_at_once(
    bench: SeatBench, function: str, body: str, says: str
) -> None:
    turns = await bench.start(f"desk:{function}")
    with pytest.raises(ProgramBroke, match=says) as broke:
        await bench.run(body)
    assert broke.value.kind == "worker_exited"
    await bench.ready()
    assert (False, None) in bench.changes
    assert turns.trouble is None


async def test_what_an_earlier_turn_said_is_not_quoted_when_a_later_one_breaks(bench: SeatBench) -> None:
    await bench.start("desk:mutters")
    await bench.run("of the first mail")
    with pytest.raises(ProgramBroke, match=r"exited with code 4 in the middle of the turn$"):
        await bench.run("")


async def test_nothing_that_is_printed_gets_into_the_protocol(bench: SeatBench) -> None:
    await bench.start("desk:prints")
    assert await bench.run() == TurnResult("delivered", "unharmed")


async def test_a_mail_of_ten_megabytes_is_refused_to_its_function(bench: SeatBench) -> None:
    await bench.start("desk:huge")
    assert (await bench.run()).detail.endswith("at most 1000000 are taken at once")


async def test_a_function_that_talks_without_end_is_ended_and_named(bench: SeatBench) -> None:
    await bench.start("desk:chatters")
    with pytest.raises(ProgramBroke) as broke:
        await bench.run()
    assert broke.value.kind == "program_flooded"
    await bench.ready()


async def test_a_function_that_takes_too_long_is_ended_and_named(bench: SeatBench) -> None:
    await bench.start("desk:waits", timeout_s=0.3)
    (worker,) = bench.programs.running
    with pytest.raises(ProgramBroke) as broke:
        await bench.run()
    assert broke.value.kind == "program_timed_out"
    assert not is_running(worker)
    await bench.ready()


async def test_a_function_that_holds_its_interpreter_and_ignores_sigterm_holds_up_nobody_and_is_ended_with_its_children(
    bench: SeatBench,
) -> None:
    turns = await bench.start("desk:holds_the_lock")
    turn = asyncio.create_task(bench.run())
    await until(lambda: bool(bench.shown))
    other = SeatBench()
    await other.start("desk:plain")
    assert (await other.run()).outcome == "delivered"
    assert other.turns is not None
    await other.turns.end()
    assert not turn.done()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert not is_running(int(bench.shown[0]))
    await bench.ready()
    assert turns.trouble is None


async def test_a_check_passes_while_the_term_is_good_and_ends_the_turn_when_it_is_lost(bench: SeatBench) -> None:
    await bench.start("desk:checks")
    turn = asyncio.create_task(bench.run())
    await until(lambda: bool(bench.shown))
    await asyncio.sleep(0.1)
    assert not turn.done()
    bench.fence.close("lease_lost")
    with pytest.raises(Fenced):
        await turn
    assert bench.programs.running == frozenset()


async def test_a_seat_that_is_lost_has_its_worker_ended_and_no_other_started(bench: SeatBench) -> None:
    turns = await bench.start("desk:waits")
    turn = asyncio.create_task(bench.run())
    await until(lambda: bool(bench.shown))
    bench.fence.close("lease_lost")
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await asyncio.sleep(0.1)
    assert not turns.is_ready
    assert bench.programs.running == frozenset()


async def test_the_end_of_a_tenure_sees_its_worker_end_in_the_middle_of_a_turn(bench: SeatBench) -> None:
    turns = await bench.start("desk:waits")
    turn = asyncio.create_task(bench.run())
    await until(lambda: bool(bench.shown))
    await turns.end()
    assert bench.programs.running == frozenset()
    with pytest.raises(ProgramBroke):
        await turn


async def test_a_fork_of_the_worker_can_neither_act_for_the_seat_nor_end_its_turn(
    bench: SeatBench, tmp_path: Path
) -> None:
    await bench.start("desk:forks")
    assert await bench.run(str(tmp_path / "said")) == TurnResult("delivered", "one of us")
    assert "forked" in (tmp_path / "said").read_text()
    assert bench.sent == []
    assert await bench.run(str(tmp_path / "said")) == TurnResult("delivered", "one of us")


async def test_nothing_is_sent_through_a_turn_that_is_over(bench: SeatBench) -> None:
    await bench.start("desk:too_late")
    assert (await bench.run()).detail == "kept"
    assert (await bench.run()).detail == "the turn is over"
    assert bench.sent == []


@pytest.mark.parametrize("function", ["leaves_a_task", "leaves_a_thread"])
async def test_what_a_function_leaves_running_says_nothing_after_its_turn(bench: SeatBench, function: str) -> None:
    await bench.start(f"desk:{function}")
    for _ in range(3):
        assert await bench.run() == TurnResult("delivered", "done")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (None, "desk:run", "ModuleNotFoundError: No module named 'desk'"),
        ("import no_such_thing", "desk:run", "No module named 'no_such_thing' (desk.py:1)"),
        ("def run(turn)", "desk:run", "SyntaxError"),
        ("", "desk:run", "has no attribute 'run'"),
        ("run = 7", "desk:run", "desk:run is a int, not a function"),
        ("import os; os._exit(4)", "desk:run", "it ended while it was loading"),
        ("import sys; sys.exit('no key')", "desk:run", "SystemExit: no key (desk.py:1)"),
    ],
)
async def test_a_module_that_cannot_be_loaded_is_told_in_one_line_and_taken_up_when_it_is_mended(
    bench: SeatBench, tmp_path: Path, source: str | None, target: str, says: str
) -> None:
    if source is not None:
        (tmp_path / "desk.py").write_text(source)
    turns = await bench.start(target, path=tmp_path)
    assert not turns.is_ready
    assert turns.trouble is not None and says in turns.trouble
    assert "\n" not in turns.trouble
    with pytest.raises(AgentNotReady, match="worker_not_ready"):
        await bench.run()
    (tmp_path / "desk.py").write_text("def run(turn):\n    return 'mended'\n")
    await bench.ready()
    assert await bench.run() == TurnResult("delivered", "mended")


async def test_a_folder_that_is_missing_is_told(bench: SeatBench, tmp_path: Path) -> None:
    turns = await bench.start("desk:run", path=tmp_path / "gone")
    assert turns.trouble == f"the working folder {tmp_path / 'gone'} is missing or not a folder"


async def test_a_worker_that_dies_between_turns_is_told_and_replaced(bench: SeatBench) -> None:
    turns = await bench.start("desk:plain")
    await bench.run()
    (pid,) = bench.programs.running
    os.kill(pid, signal.SIGKILL)
    await until(lambda: bench.programs.running not in (frozenset(), frozenset({pid})) and turns.is_ready)
    assert (False, "worker_exited: it was ended by signal 9 between turns") in bench.changes
    assert turns.trouble is None
    assert (await bench.run()).outcome == "delivered"


async def test_a_worker_whose_variable_is_not_set_on_the_node_holds_its_seat_and_says_which(bench: SeatBench) -> None:
    seat = Seat("alice", runner=PythonRunner("desk:waits", str(SEATS), env={"KEY": "${NOPE}"}))
    turns = PythonTurns(seat, bench.programs, clock=bench.clock, base_env=ENV)
    turns.start(bench.fence, lambda: None)
    assert not turns.is_ready
    assert turns.trouble == "desk:waits: it needs the variable NOPE, which is not set on this node"
    await turns.end()


async def test_rounds_of_starts_turns_and_cancellations_leave_no_process_and_no_zombie(bench: SeatBench) -> None:
    """Cut at ever later instants: in the spawn, in the load, between turns, in a turn."""
    before = children()
    for round_ in range(24):
        seat = Seat("alice", runner=PythonRunner("desk:waits", str(SEATS)))
        bench.seat = seat
        turns = PythonTurns(seat, bench.programs, clock=bench.clock, base_env=ENV)
        turns.start(bench.fence, lambda: None)
        bench.turns = turns
        if round_ % 3 == 2:
            await until(lambda turns=turns: turns.is_ready)
            turn = asyncio.create_task(bench.run())
            await asyncio.sleep(0.002 * round_)
            turn.cancel()
            await asyncio.wait((turn,))
        else:
            await asyncio.sleep(0.002 * round_)
        ending = asyncio.create_task(turns.end())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait((ending,))
        await turns.end()
        assert bench.programs.running == frozenset()
        assert children() <= before
