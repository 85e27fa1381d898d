"""Without a free descriptor nothing is started, nothing is thought to have ended, and a node says so and recovers."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, publish, runs
from process_kit import ENV, children, is_running, python, until

from crewlet.adapters.process import LocalPrograms
from crewlet.ports.programs import ProgramNotStarted, ProgramSpec, ProgramUnproven
from crewlet.testing.brokers import one_server

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@contextmanager
def free_files(count: int) -> Generator[None]:
    """This process may open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(2)
    os.close(lowest)
    taken = [os.dup(2) for _ in range(64)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    try:
        for descriptor in taken[:count]:
            os.close(descriptor)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken[count:]:
            os.close(descriptor)


@pytest.mark.parametrize("count", range(12))
async def test_a_program_that_cannot_be_started_for_want_of_descriptors_is_named_and_leaves_nothing(count: int) -> None:
    programs = LocalPrograms()
    before = children()
    program, why = None, "Too many open files"
    with free_files(count):
        try:
            program = await programs.spawn(ProgramSpec(("sleep", "60"), ENV))
        except ProgramNotStarted as refused:
            why = str(refused)
    if program is not None:
        await program.end()
    assert "Too many open files" in why
    await until(lambda: children() <= before)
    assert programs.running == frozenset()


async def test_who_cannot_look_has_no_proof_that_a_daemon_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = LocalPrograms(proof_s=0.2)
    program = await programs.spawn(ProgramSpec(python("daemon.py"), ENV))
    (line,) = [line async for line in program.lines()]
    daemon = int(line)
    assert await program.wait() == 0

    def none_left(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with monkeypatch.context() as patched:
        patched.setattr("crewlet.adapters.process.tree.os.open", none_left)
        with pytest.raises(ProgramUnproven):
            await program.end()
    while programs.running:  # on a busy machine the short bound may pass again before the kernel is done
        with suppress(ProgramUnproven):
            await program.end()
    assert not is_running(daemon)


@pytest.mark.timeout(240)
async def test_a_node_without_a_free_descriptor_says_so_keeps_its_seats_and_works_on_once_it_has_some(
    tmp_path: Path,
) -> None:
    with one_server(tmp_path) as server:
        node = NodeProcess(tmp_path, "n1", server.url, seats={"desk": {}}, labels={}, ttl_s=10.0)
        try:
            await node.until(lambda: node.holds("desk"), "it holds its seat")
            pid = node.process.pid
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
            # Any gaps below its highest one are few, and a program takes more than those.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1 - 2, hard))
            await publish(server.url, node.company, [("desk", "mail")])
            await node.until(lambda: bool(node.events("agent_not_ready")), "the turn that could not begin is told")
            assert "Too many open files" in str(node.events("agent_not_ready"))
            await node.until(lambda: bool(node.events("open_files_exhausted")), "the node says what it lacks")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            await node.until(lambda: any(run.is_ended for run in runs(tmp_path, "desk")), "the mail is worked")
            await node.until(lambda: bool(node.events("open_files_available")), "the node says that it has some again")
            assert node.events("seat_lost") == [] and "watchdog" not in node.said()
            assert await node.drain() == 0
        finally:
            node.end()


def test_a_node_that_may_open_too_few_files_is_refused_in_one_sentence(tmp_path: Path) -> None:
    crewlet = [sys.executable, "-m", "crewlet.cli"]
    subprocess.run([*crewlet, "init", "."], cwd=tmp_path, check=True, capture_output=True)
    limited = 'ulimit -n 20 && exec "$0" "$@"'
    done = subprocess.run(
        ["sh", "-c", limited, *crewlet, "up"], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert "this process may open 20 files, and a node needs 64" in done.stderr and "Traceback" not in done.stderr
