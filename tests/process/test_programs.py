"""The Programs port on real processes, on both event loops."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from process_kit import ENV, children, is_running, python, until

from crewlet.adapters.process import LocalPrograms, tree
from crewlet.ports.errors import Misuse
from crewlet.ports.programs import OutputFlood, Program, ProgramNotStarted, ProgramSpec, ProgramUnproven

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

Case = Callable[[LocalPrograms], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Case], None]:
    """Runs a case on an event loop, and sees that it leaves no process behind, dead or alive."""

    def run(case: Case) -> None:
        async def main() -> None:
            before = children()
            programs = LocalPrograms()
            await case(programs)
            assert programs.running == frozenset()
            assert children() <= before

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


def _shell(script: str, env: Mapping[str, str] = ENV, **more: Any) -> ProgramSpec:
    return ProgramSpec(("sh", "-c", script), env, **more)


async def _all(lines: AsyncIterator[bytes]) -> list[bytes]:
    return [line async for line in lines]


async def _first(program: Program) -> bytes:
    async for line in program.lines():
        return line
    raise AssertionError("no output")


def test_a_program_reads_lines_answers_lines_and_its_exit_code_is_told(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("cat; echo oops >&2; printf 'no newline'; exit 3"))
        await program.write_line(b"one")
        await program.write_line(b"two")
        program.close_input()
        assert await _all(program.lines()) == [b"one", b"two", b"no newline"]
        assert await program.wait() == 3
        await program.end()
        await program.end()
        assert await program.wait() == 3
        assert program.error_tail() == "oops\n"
        assert (program.error_bytes(), program.error_tail(1), program.error_tail(5)) == (5, "ops\n", "")

    on_loop(case)


def test_a_program_gets_exactly_the_environment_it_was_given() -> None:
    async def main() -> None:
        program = await LocalPrograms().spawn(ProgramSpec(("/usr/bin/env",), {"ONE": "1", "EMPTY": ""}))
        assert sorted(await _all(program.lines())) == [b"EMPTY=", b"ONE=1"]
        await program.end()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (ProgramSpec(("no-such-program",), ENV), "no-such-program was not found on the path"),
        (ProgramSpec(("/no/such/program",), ENV), "/no/such/program was not found"),
        (ProgramSpec(("/etc/passwd",), ENV), "/etc/passwd is not executable"),
        (ProgramSpec(("true",), ENV, "/no/such/folder"), "the working folder /no/such/folder is missing"),
        (ProgramSpec(("true", "nul\0"), ENV), "embedded null"),
        (ProgramSpec(("true",), {"A=B": "c"}), "illegal environment variable name"),
    ],
)
async def test_what_cannot_start_says_why_and_leaves_nothing(spec: ProgramSpec, says: str) -> None:
    programs = LocalPrograms()
    before = children()
    with pytest.raises(ProgramNotStarted, match=says):
        await programs.spawn(spec)
    assert children() <= before
    assert programs.running == frozenset()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("yes", "output"),
        ("head -c 100000 /dev/zero; sleep 30", "line"),
        ("head -c 100000 /dev/zero; echo; sleep 30", "line"),
    ],
)
def test_a_flood_ends_the_output_and_the_loop_goes_on_meanwhile(
    on_loop: Callable[[Case], None], script: str, says: str
) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell(script, max_line_bytes=50_000, max_output_bytes=1_000_000))
        turns = 0

        async def bystander() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(bystander())
        with pytest.raises(OutputFlood, match=says):
            await _all(program.lines())
        other.cancel()
        if script == "yes":  # many reads of a pipe that is never empty; the others may take a single one
            assert turns > 1
        await program.end()

    on_loop(case)


def test_a_program_whose_threads_are_still_ending_is_waited_for(
    on_loop: Callable[[Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, kills = os.killpg, list[int]()

    def late(group: int, number: int) -> None:
        """The first kill takes its time, as it may on a busy machine."""
        kills.append(number)
        if len(kills) > 1:
            kill(group, number)

    async def case(programs: LocalPrograms) -> None:
        kills.clear()
        program = await programs.spawn(ProgramSpec(python("threads.py"), ENV))
        assert await _first(program) == b"ready"
        await until(lambda: not is_running(program.pid))
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", late)
            await program.end()
        assert len(kills) > 1
        assert await program.wait() == -signal.SIGKILL

    on_loop(case)


def test_a_flood_of_errors_is_read_on_and_only_its_end_is_kept(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("yes | head -c 3000000 >&2; echo the end >&2; echo done"))
        assert await _all(program.lines()) == [b"done"]
        await program.end()
        assert program.error_tail().endswith("y\nthe end\n")
        assert len(program.error_tail()) <= 2000

    on_loop(case)


def test_lines_wait_in_the_pipe_for_who_reads_them_after_the_end(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("echo one; echo two"))
        assert await program.wait() == 0
        await program.end()
        assert await _all(program.lines()) == [b"one", b"two"]

    on_loop(case)


def test_writing_to_a_program_that_does_not_read_waits_and_its_end_is_no_error(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("sleep 60"))
        writing = asyncio.create_task(program.write_line(b"x" * 1_000_000))
        await asyncio.sleep(0.05)
        assert not writing.done()
        await program.end()
        await writing
        await program.write_line(b"and more")

    on_loop(case)


def test_a_program_may_end_in_its_own_way_within_the_grace(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"))
        assert await _first(program) == b"up"
        await program.end(grace_s=30)
        assert await program.wait() == 7
        assert await _all(program.lines()) == [b"bye"]

    on_loop(case)


def test_a_program_that_ignores_the_request_is_killed_after_the_grace(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("trap '' TERM; echo up; sleep 60"))
        assert await _first(program) == b"up"
        await program.end(grace_s=0.05)
        assert await program.wait() == -signal.SIGKILL

    on_loop(case)


def test_a_stopped_program_ends_too(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("sleep 60"))
        os.kill(program.pid, signal.SIGSTOP)
        await program.end()
        assert not is_running(program.pid)

    on_loop(case)


def test_a_daemon_in_a_new_session_with_an_empty_environment_ends_with_its_program(
    on_loop: Callable[[Case], None],
) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(ProgramSpec(python("daemon.py"), ENV))
        daemon = int(await _first(program))
        assert await program.wait() == 0
        assert is_running(daemon)
        await program.end()
        assert not is_running(daemon)

    on_loop(case)


def test_a_fork_storm_in_ever_new_sessions_ends_with_its_program(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(ProgramSpec(python("hop.py", "3"), ENV))
        assert await _first(program) == b"under way"
        await program.end()

    on_loop(case)


def test_two_programs_do_not_take_each_others_orphans(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        one, two = [await programs.spawn(ProgramSpec(python("daemon.py"), ENV)) for _ in range(2)]
        daemons = [int(await _first(program)) for program in (one, two)]
        await one.wait()
        await two.wait()
        await one.end()
        assert [is_running(daemon) for daemon in daemons] == [False, True]
        await two.end()
        assert not is_running(daemons[1])

    on_loop(case)


@pytest.mark.parametrize("args", [(), ("exits",)])
def test_a_daemon_that_changed_its_mark_ends_with_its_program(
    on_loop: Callable[[Case], None], args: tuple[str, ...]
) -> None:
    async def case(programs: LocalPrograms) -> None:
        bystander = await LocalPrograms().spawn(_shell("sleep 60"))
        program = await programs.spawn(ProgramSpec(python("turncoat.py", *args), ENV))
        daemon = int(await _first(program))
        ours = await asyncio.create_subprocess_exec("sleep", "60")
        if args:
            assert await program.wait() == 0
        assert is_running(daemon)
        await program.end()
        assert [is_running(pid) for pid in (daemon, ours.pid, bystander.pid)] == [False, True, True]
        ours.kill()
        assert await ours.wait() == -9
        await bystander.end()

    on_loop(case)


def test_a_program_does_not_take_a_daemon_that_was_there_before_it(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        earlier = await programs.spawn(ProgramSpec(python("turncoat.py"), ENV))
        daemon = int(await _first(earlier))
        later = await programs.spawn(_shell("sleep 60"))
        await later.end()
        assert is_running(daemon)
        await earlier.end()
        assert not is_running(daemon)

    on_loop(case)


def test_other_children_of_this_process_keep_their_lives_and_their_exit_codes(
    on_loop: Callable[[Case], None],
) -> None:
    async def case(programs: LocalPrograms) -> None:
        quick = await asyncio.create_subprocess_exec("sh", "-c", "exit 9")
        slow = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        program = await programs.spawn(_shell("sleep 60 & sleep 60"))
        await program.end()
        assert await quick.wait() == 9
        assert is_running(slow.pid)
        slow.kill()
        assert await slow.wait() == -9

    on_loop(case)


def test_the_orphans_of_a_long_run_do_not_stay_zombies(
    on_loop: Callable[[Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crewlet.adapters.process.programs._REAP_EVERY_S", 0.02)

    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("(sh -c 'echo $$; sleep 0.1' &) ; sleep 60"))
        orphan = int(await _first(program))
        await until(lambda: not os.path.exists(f"/proc/{orphan}"))
        await program.end()

    on_loop(case)


def test_one_look_at_all_processes_serves_all_programs(
    on_loop: Callable[[Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes milliseconds of the loop that renews the leases, and some programs stay as long as their seats."""
    period_s, looks = 0.02, list[float]()
    look = tree.dead_children

    def noted() -> Sequence[tree.Dead]:
        looks.append(time.monotonic())
        return look()

    monkeypatch.setattr("crewlet.adapters.process.programs._REAP_EVERY_S", period_s)
    monkeypatch.setattr(tree, "dead_children", noted)

    async def case(programs: LocalPrograms) -> None:
        started = [await programs.spawn(_shell("sleep 60")) for _ in range(5)]
        await until(lambda: len(looks) >= 6)
        assert all(later - earlier >= period_s / 2 for earlier, later in pairwise(looks))
        for program in started:
            await program.end()

    on_loop(case)


def test_a_program_that_exited_keeps_its_process_id_until_it_is_ended(
    on_loop: Callable[[Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crewlet.adapters.process.programs._REAP_EVERY_S", 0.01)

    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("(sh -c 'echo $$; sleep 0.2' &) ; exit 3"))
        orphan = int(await _first(program))
        await until(lambda: not os.path.exists(f"/proc/{orphan}"))  # so the reaper has been round since the exit
        assert os.path.exists(f"/proc/{program.pid}")
        await program.end()
        assert await program.wait() == 3
        assert not os.path.exists(f"/proc/{program.pid}")

    on_loop(case)


def test_end_that_is_cancelled_has_sent_the_kill_and_a_further_one_brings_the_proof(
    on_loop: Callable[[Case], None],
) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("trap '' TERM; echo up; sleep 60"))
        await _first(program)
        ending = asyncio.create_task(program.end(grace_s=60))
        await asyncio.sleep(0.05)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert await program.wait() == -signal.SIGKILL
        await program.end()

    on_loop(case)


def test_two_calls_to_end_both_return_when_it_is_over(on_loop: Callable[[Case], None]) -> None:
    async def case(programs: LocalPrograms) -> None:
        program = await programs.spawn(_shell("trap '' TERM; echo up; sleep 60"))
        await _first(program)
        await asyncio.gather(program.end(grace_s=0.2), program.end(), program.end(grace_s=0.1))
        assert not is_running(program.pid)

    on_loop(case)


def _spare(*_: object) -> None:
    """A kill that does nothing, as on a process that waits in the kernel."""


async def test_what_cannot_be_killed_is_named_and_a_further_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = LocalPrograms(proof_s=0.05)
    program = await programs.spawn(_shell("sleep 60"))
    with monkeypatch.context() as patched:
        patched.setattr("crewlet.adapters.process.tree.os.killpg", _spare)
        patched.setattr("crewlet.adapters.process.tree._kill", _spare)
        with pytest.raises(ProgramUnproven, match=str(program.pid)):
            await program.end()
    assert programs.running == {program.pid}
    assert is_running(program.pid)
    while programs.running:  # on a busy machine the short bound may pass again before the kernel is done
        with suppress(ProgramUnproven):
            await program.end()
    assert programs.running == frozenset()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_program_dies_with_its_node_and_not_with_a_thread_of_it(loop: str) -> None:
    node = await asyncio.create_subprocess_exec(*python("node.py", loop), stdout=asyncio.subprocess.PIPE)
    assert node.stdout is not None
    pid = int(await node.stdout.readline())
    assert is_running(pid)
    node.kill()
    await node.wait()
    await until(lambda: not is_running(pid))


def test_a_program_is_not_started_from_a_thread_whose_end_would_end_it() -> None:
    caught: list[BaseException] = []

    def other() -> None:
        try:
            asyncio.run(LocalPrograms().spawn(_shell("sleep 60")))  # type: ignore[arg-type]
        except Misuse as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(caught) == 1
