"""When a parent gives back nothing of a dead node, and says why."""

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from standins import PRELUDE, RUN, Up, eventually, is_running

from crewlet.supervisor.broker import BrokerPlan
from crewlet.supervisor.plan import UpPlan

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the proof of death needs a sub-reaper"),
]

LEAVES_ONE_BEHIND = """
page.page.write_owner("n1:one")
if is_first:
    stuck = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    tell("stuck", stuck.pid)
    page.good_until(boottime() + 600)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""

# As it is with a process that waits in the kernel for a disk that is gone: the signal is sent, and nothing comes of it.
UNKILLABLE = f"""
import os, signal
from pathlib import Path
kill, kill_handle, open_handle = os.kill, signal.pidfd_send_signal, os.pidfd_open
handles = {{}}
def stuck():
    file = Path(os.environ["HERE"], "stuck")
    return int(file.read_text()) if file.exists() else None
def remembered(pid):
    handle = open_handle(pid)
    handles[handle] = pid
    return handle
os.pidfd_open = remembered
os.kill = lambda pid, number: None if pid == stuck() else kill(pid, number)
signal.pidfd_send_signal = lambda h, number: None if handles[h] == stuck() else kill_handle(h, number)
{RUN}
"""

Start = Callable[..., Up]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    started: list[Up] = []

    def start_up(node: str, *, broker: bool = True, run: str = RUN) -> Up:
        data = tmp_path / "data"
        plan = UpPlan(
            data,
            (sys.executable, "-c", PRELUDE + node),
            broker=BrokerPlan(store_dir=data / "broker") if broker else None,
            lease_ttl_s=10.0,
        )
        started.append(Up(tmp_path, plan, run=run))
        return started[-1]

    yield start_up
    for up in started:
        up.clear()


def test_what_sigkill_does_not_end_is_an_alarm_and_nothing_is_given_back(start: Start) -> None:
    up = start(LEAVES_ONE_BEHIND, run=UNKILLABLE)
    stuck = int(up.told("stuck"))
    up.node(1)
    said = up.said()
    assert f"ALARM: process {stuck} (" in said and "does not end; it may still act." in said
    assert f"nothing of node {up.node()} is given back: it is not proven that all it started has ended." in said
    assert "given back within" not in said
    assert is_running(stuck)


def test_without_a_broker_of_its_own_a_parent_gives_back_nothing(start: Start) -> None:
    up = start(LEAVES_ONE_BEHIND, broker=False)
    up.node(1)
    assert (
        f"nothing of node {up.node()} is given back: only a broker beside it shows its connection closed." in up.said()
    )
    assert not is_running(int(up.told("stuck")))


def test_what_was_killed_for_its_leases_had_them_run_out_before_anything_could_be_given_back(start: Start) -> None:
    up = start(
        """
page.page.write_owner("n1:one" if is_first else "n1:two")
if is_first:
    page.good_until(boottime() + 0.3)
time.sleep(600)
"""
    )
    first = up.node()
    up.node(1)
    eventually(lambda: "given back" in up.said(), "the helper has said what it did")
    assert f"watchdog: node {first} did not renew its leases in time" in up.said()
    assert "crewlet up: nothing of n1:one is given back: its leases had run out.\n" in up.said()


def test_a_node_that_ended_well_or_never_said_who_it_was_leaves_nothing_to_give_back(start: Start) -> None:
    up = start("page.page.write_owner('n1:one') if is_first else None\nos._exit(0 if is_first else 3)")
    up.node(2)
    assert "given back" not in up.said()
