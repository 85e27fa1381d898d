"""What an earlier incarnation left is ended before anything is begun, where it is provably its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_kit import ENV, is_running, python, until
from structlog.testing import capture_logs

from crewlet.adapters.process import LocalPrograms, MarkBook, tree
from crewlet.ports.programs import ProgramSpec

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="marks are Linux only")]


def _killed_while_it_runs(folder: Path, *program: str) -> bytes:
    """Kill a process that ran a program. Returns the first line of that."""
    with subprocess.Popen(python("leaver.py", str(folder), *program), stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        said = node.stdout.readline()
        node.kill()
    return said


def _killed_with_a_daemon(folder: Path) -> int:
    return int(_killed_while_it_runs(folder, "daemon.py"))


async def test_a_daemon_that_a_killed_incarnation_left_is_ended_and_a_strangers_is_not(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    left, stranger = _killed_with_a_daemon(mine), _killed_with_a_daemon(theirs)
    try:
        assert is_running(left) and is_running(stranger)
        with capture_logs() as logs:
            await LocalPrograms(marks=MarkBook(mine / "programs")).end_left()
        assert not is_running(left)
        # The program that made the daemon may not have ended yet: then it was left as well.
        assert [(event["event"], left in event["pids"]) for event in logs] == [("left_programs_ended", True)]
        assert is_running(stranger)
        with capture_logs() as logs:
            await LocalPrograms(marks=MarkBook(mine / "programs")).end_left()
        assert logs == []
    finally:
        for pid in (left, stranger):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


async def test_a_storm_of_forks_that_was_left_is_ended(tmp_path: Path) -> None:
    assert _killed_while_it_runs(tmp_path, "hop.py", "2") == b"under way\n"
    book = MarkBook(tmp_path / "programs")
    marks = book.left
    assert any(tree.strike_marked(marks) for _ in range(100))  # a single look may miss what forks without a pause
    with capture_logs() as logs:
        await LocalPrograms(marks=book, proof_s=20).end_left()
    assert "left_programs_unproven" not in str(logs)
    for _ in range(20):
        assert not tree.strike_marked(marks)


def _do_nothing(*_: object) -> None:
    return None


async def test_what_cannot_be_seen_to_end_is_an_alarm_and_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _killed_with_a_daemon(tmp_path)
    book = tmp_path / "programs"
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(signal, "pidfd_send_signal", _do_nothing)
        await LocalPrograms(marks=MarkBook(book), proof_s=0.1).end_left()
    assert [(event["event"], left in event["left"]) for event in logs] == [("left_programs_unproven", True)]
    await LocalPrograms(marks=MarkBook(book)).end_left()
    assert not is_running(left)


async def test_a_program_of_this_incarnation_is_not_taken_for_one_that_was_left(tmp_path: Path) -> None:
    programs = LocalPrograms(marks=MarkBook(tmp_path / "programs"))
    program = await programs.spawn(ProgramSpec(("sleep", "60"), ENV))
    await programs.end_left()
    assert is_running(program.pid)
    await program.end()


async def test_the_book_of_marks_stays_small_and_keeps_what_runs(tmp_path: Path) -> None:
    book = MarkBook(tmp_path / "programs")
    lasting, base = 1 << 50, 1 << 40
    book.add(lasting)
    for number in range(5_000):
        book.add(base + number)
        book.drop(base + number)
    last = base + 5_000
    book.add(last)
    book.add(77)  # what a person may have set as a limit proves nothing
    left = MarkBook(tmp_path / "programs").left
    assert {lasting, last} <= left and 77 not in left and len(left) < 1_100


async def test_a_book_that_is_torn_or_not_there_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    book = tmp_path / "programs"
    assert MarkBook(book).left == frozenset[int]()
    book.write_bytes(b"%d\n\xff\xfe\n-5\n\n%d" % (1 << 40, (1 << 40) + 1))
    assert MarkBook(book).left == {1 << 40, (1 << 40) + 1}


async def test_a_book_that_cannot_be_written_starts_the_program_all_the_same_and_says_so(tmp_path: Path) -> None:
    programs = LocalPrograms(marks=MarkBook(tmp_path / "no" / "folder"))
    with capture_logs() as logs:
        program = await programs.spawn(ProgramSpec(("true",), ENV))
        await until(lambda: not is_running(program.pid))
        await program.end()
    assert [event["event"] for event in logs] == ["program_mark_unwritten"]
