"""Planning, imports, and the proof of death by themselves."""

import sys
from pathlib import Path

import pytest
from standins import finish

from crewlet.supervisor.plan import UpPlan

pytestmark = pytest.mark.process

PLANNER = """
import os, sys
print("planning", *sys.argv[1:])
if sys.argv[1] == "good":
    os.write(int(os.environ["CREWLET_PLAN_FD"]), os.environ["THE_PLAN"].encode())
sys.exit(int(sys.argv[2]))
"""
MAIN = """
import sys
from crewlet.supervisor import parent
sys.exit(parent.main(sys.argv[2:], planner=("-c", sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("argv", "code"),
    [(("help", "0"), 0), (("bad", "78"), 78), (("bad", "2"), 2), (("good", "5"), 5), (("good", "0"), 78)],
)
def test_the_planning_process_decides_whether_anything_runs(tmp_path: Path, argv: tuple[str, str], code: int) -> None:
    plan = UpPlan(tmp_path, (sys.executable, "-c", "raise SystemExit(78)"))
    done = finish(MAIN, PLANNER, *argv, THE_PLAN=plan.to_json())
    assert done.returncode == code
    assert done.stdout == f"planning {' '.join(argv)}\n"
    assert ("node started" in done.stderr) == (argv == ("good", "0"))


def test_a_stop_while_there_is_no_plan_yet_ends_both_processes_and_begins_nothing() -> None:
    planner = (
        "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); print('sent', flush=True); time.sleep(600)"
    )
    done = finish(MAIN, planner)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_parent_loads_nothing_but_the_standard_library() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import crewlet.supervisor.parent, crewlet.supervisor.page, crewlet.supervisor.plan\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - set(sys.stdlib_module_names)))\n"
        "print(sorted({'.'.join(n.split('.')[:2]) for n in sys.modules if n.startswith('crewlet')}))\n"
    )
    done = finish(code)
    assert done.stdout == "['crewlet']\n['crewlet', 'crewlet.kit', 'crewlet.supervisor']\n"


def test_what_cannot_be_killed_is_named_and_not_waited_for_again() -> None:
    code = """
import os, sys
from crewlet.supervisor import proof
from crewlet.supervisor.spawn import become_subreaper, spawn
become_subreaper()
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
stuck, other = spawn(sleeper, env={}), spawn(sleeper, env={})
kill = os.kill
os.kill = lambda pid, number: None if pid == stuck.pid else kill(pid, number)
first = proof.end_all((), stuck_s=5.0)
print(first.is_proven, [left.pid == stuck.pid for left in first.left], first.reaped == {other.pid: -9})
second = proof.end_all((), given_up={stuck.pid}, stuck_s=600)
print(second.is_proven, second.left)
os.kill = kill
third = proof.end_all(())
print(third.is_proven, third.reaped == {stuck.pid: -9})
"""
    done = finish(code)
    assert done.stdout.splitlines() == ["False [True] True", "False ()", "True True"], done.stderr
