"""The parent of `crewlet up` over stand-in nodes: real processes, real broker."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from standins import PRELUDE, RUN, Up, accepts, eventually, finish, is_running

from crewlet.supervisor.broker import BrokerPlan
from crewlet.supervisor.page import boottime
from crewlet.supervisor.plan import UpPlan

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the proof of death needs a sub-reaper"),
]

Start = Callable[..., Up]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Up] = []

    def start_up(node: str, *, broker: bool = False, ttl_s: float | None = 10.0) -> Up:
        plan = UpPlan(
            tmp_path / "data",
            (sys.executable, "-c", PRELUDE + node),
            broker=BrokerPlan(store_dir=tmp_path / "data" / "broker") if broker else None,
            lease_ttl_s=ttl_s,
        )
        started.append(Up(tmp_path, plan))
        return started[-1]

    yield start_up
    for up in started:
        up.clear()


BROOD = """
if is_first:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    detach(linger)
    detach(linger)
    def hop():
        while True:  # always on the move: each process leaves a successor in a new session and ends
            os.write(hops, b".")
            if os.fork():
                os._exit(0)
            os.setsid()
    hops = os.open(here / "hops", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(4):
        detach(hop)
    while os.fstat(hops).st_size < 40:
        time.sleep(0.01)
    tell("brood")
time.sleep(600)
"""


def has_stopped_growing(path: Path) -> bool:
    size = path.stat().st_size
    time.sleep(0.2)
    return path.stat().st_size == size


def test_a_killed_node_leaves_nothing_behind_before_the_next_one_starts(tmp_path: Path, start: Start) -> None:
    up = start(BROOD)
    up.told("brood")
    first = up.node()
    os.kill(first, signal.SIGKILL)
    assert up.told("strangers") == "[]"
    assert has_stopped_growing(tmp_path / "hops")
    assert up.node(1) != first
    assert "node ended with signal 9" in up.said()


def test_a_node_that_ends_by_itself_leaves_nothing_behind_either(start: Start) -> None:
    up = start(BROOD.replace("time.sleep(600)\n", "os._exit(3) if is_first else time.sleep(600)\n"))
    assert up.told("strangers") == "[]"
    assert "node ended with exit code 3; starting it again in 0.5 s" in up.said()


def test_a_frozen_node_is_killed_at_its_deadline_with_its_programs_and_not_before(start: Start) -> None:
    up = start(
        """
if is_first:
    detach(linger)
    until = boottime() + 1.5
    page.good_until(until)
    tell("until", until)
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""
    )
    until = float(up.told("until"))
    first = up.node()
    eventually(lambda: not is_running(first), "the frozen node is dead")
    assert boottime() >= until - 0.05
    assert up.told("strangers") == "[]"
    assert f"watchdog: node {first} did not renew its leases in time" in up.said()
    assert "node ended with exit code 75" in up.said()


def test_the_newest_instant_wins(start: Start) -> None:
    up = start(
        """
if is_first:
    until = boottime() + 5.0  # a busy machine may take a while for two lines
    page.good_until(until)
    page.good_until(until + 600)
    while boottime() < until + 0.3:
        time.sleep(0.01)
    page.good_until(until)
    tell("survived")
time.sleep(600)
"""
    )
    up.told("survived")
    assert up.node(1) != up.node(0)
    assert "exit code 75" in up.said()


def test_a_node_with_nothing_at_stake_has_no_deadline(start: Start) -> None:
    up = start(
        """
until = boottime() + 5.0  # a busy machine may take a while for two lines
page.good_until(until)
page.good_until(None)
while boottime() < until + 0.7:
    time.sleep(0.01)
tell("survived")
time.sleep(600)
"""
    )
    up.told("survived")
    assert len(up.nodes()) == 1 and is_running(up.node())


def test_a_node_that_stopped_turning_is_asked_for_its_stacks_first(start: Start) -> None:
    up = start(
        """
faulthandler.register(signal.SIGUSR2, all_threads=True)
def stuck_in_here():
    page.good_until(boottime() + (2.5 if is_first else 600))
    time.sleep(600)
stuck_in_here()
"""
    )
    up.node(1)
    said = up.said()
    assert said.index("in stuck_in_here") < said.index("watchdog")


def test_a_node_that_cannot_tell_its_stacks_is_not_asked(start: Start) -> None:
    up = start("page.good_until(boottime() + (2.5 if is_first else 600))\ntime.sleep(600)")
    up.node(1)
    assert "exit code 75" in up.said()
    assert "signal 12" not in up.said()


def test_a_killed_broker_comes_back_on_its_port_and_the_node_does_not_notice(start: Start) -> None:
    up = start("tell('url', os.environ['CREWLET_BROKER_URL'])\ntime.sleep(600)", broker=True)
    pid, port = up.broker()
    assert up.told("url") == f"nats://127.0.0.1:{port}"
    node = up.node()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "signal 9; starting it again" in up.said(), "the end was noticed")
    eventually(lambda: accepts(port), "the broker is back")
    assert up.nodes() == [node] and is_running(node)


def test_a_node_is_restarted_without_touching_the_broker(start: Start) -> None:
    up = start("time.sleep(600)", broker=True)
    pid, _ = up.broker()
    os.kill(up.node(), signal.SIGKILL)
    up.node(1)
    assert is_running(pid)


def test_a_second_up_on_the_data_directory_is_refused_in_one_sentence(start: Start) -> None:
    first = start("time.sleep(600)")
    first.node()
    second = start("time.sleep(600)")
    assert second.exit_code() == 1
    lines = [line for line in second.said().splitlines() if "another" in line]
    assert lines == [
        f"crewlet up: another `crewlet up` (process {first.process.pid}) already runs on the data directory "
        f"{first.plan.data_dir}."
    ]
    assert len(first.nodes()) == 1


DRAINS = """
url = os.environ["CREWLET_BROKER_URL"]
def drain(*_):
    time.sleep(0.2)
    host, port = url.removeprefix("nats://").split(":")
    socket.create_connection((host, int(port)), timeout=30).close()
    tell("drained")
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
detach(linger)
tell("ready")
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_drains_the_node_while_the_broker_still_serves(start: Start, number: int) -> None:
    up = start(DRAINS, broker=True)
    up.told("ready")
    pid, _ = up.broker()
    up.process.send_signal(number)
    assert up.exit_code() == 0
    up.told("drained")
    assert up.marked() == []
    assert not is_running(pid)


def test_a_second_signal_ends_everything_at_once(start: Start) -> None:
    up = start(
        """
signal.signal(signal.SIGTERM, lambda *_: tell("ignored"))
detach(linger)
tell("ready")
while True:
    time.sleep(600)
""",
        broker=True,
    )
    up.told("ready")
    pid, _ = up.broker()
    up.process.terminate()
    up.told("ignored")
    assert up.process.poll() is None
    up.process.terminate()
    assert up.exit_code() == 1
    assert up.marked() == []
    assert not is_running(pid)


def test_a_drain_that_hangs_still_ends_at_the_deadline(start: Start) -> None:
    up = start(
        """
signal.signal(signal.SIGTERM, lambda *_: page.good_until(boottime() + 0.5))
tell("ready")
while True:
    time.sleep(600)
"""
    )
    up.told("ready")
    up.process.terminate()
    assert up.exit_code() == 75
    assert up.marked() == []


def test_a_stop_between_two_nodes_ends_without_another(start: Start) -> None:
    up = start("os._exit(3)")
    # Far more time than it takes a busy machine to send a signal.
    eventually(lambda: "starting it again in 4 s" in up.said(), "the fourth node ended too")
    up.process.terminate()
    assert up.exit_code() == 0
    assert len(up.nodes()) == 4


def test_when_the_parent_is_killed_nothing_is_left_and_the_next_up_can_start(start: Start) -> None:
    up = start("tell('ready')\ntime.sleep(600)", broker=True)
    up.told("ready")
    node, (broker, _) = up.node(), up.broker()
    up.process.kill()
    up.process.wait()
    eventually(lambda: not is_running(node), "the node died with its parent")
    eventually(lambda: not is_running(broker), "the broker died with its parent")
    again = start("time.sleep(600)", broker=True)
    again.node(1)
    assert again.process.poll() is None


@pytest.mark.parametrize("code", [2, 78])
def test_a_refused_configuration_is_passed_on_and_not_tried_again(start: Start, code: int) -> None:
    up = start(f"os._exit({code})", broker=True)
    assert up.exit_code() == code
    assert len(up.nodes()) == 1
    assert not is_running(up.broker()[0])


def test_a_node_that_fails_before_it_ever_came_up_fails_the_command(start: Start) -> None:
    up = start("os._exit(1)", broker=True)
    assert up.exit_code() == 1
    assert len(up.nodes()) == 1
    assert not is_running(up.broker()[0])


def test_a_node_that_fails_as_it_comes_up_with_its_broker_is_started_again_and_keeps_its_broker(start: Start) -> None:
    up = start("page.page.write_owner('n:1')\nos._exit(1)", broker=True)
    broker, _ = up.broker()
    up.node(1)
    assert up.process.poll() is None
    assert is_running(broker)


def test_a_node_that_fails_after_one_came_up_is_started_again(start: Start) -> None:
    up = start("page.beat()\nos._exit(1)")
    up.node(1)
    assert up.process.poll() is None


def test_a_broker_that_cannot_start_fails_the_command_in_one_sentence(tmp_path: Path, start: Start) -> None:
    holder = start("time.sleep(600)", broker=True)
    _, port = holder.broker()
    plan = UpPlan(tmp_path / "else", ("true",), broker=BrokerPlan(store_dir=tmp_path / "b", port=port))
    done = finish(RUN, plan.to_json())
    assert done.returncode == 1
    assert done.stderr == (
        f"crewlet up: The broker crewlet cannot listen: port {port} is already in use;"
        " set stream.port to auto or to a free port.\n"
    )


def test_an_api_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = taken.getsockname()
        plan = UpPlan(tmp_path, ("true",), broker=BrokerPlan(store_dir=tmp_path / "b"), api=address)
        done = finish(RUN, plan.to_json())
    assert done.returncode == 1
    sentence = f"The API cannot listen on 127.0.0.1:{address[1]} (Address already in use)"
    assert done.stderr == f"crewlet up: {sentence}; set api.port to auto or to a free port.\n"
    assert not (tmp_path / "b").exists()


def test_a_node_that_does_not_exist_fails_the_command(tmp_path: Path) -> None:
    plan = UpPlan(tmp_path, ("/nowhere/node",))
    done = finish(RUN, plan.to_json())
    assert done.returncode == 1
    assert "/nowhere/node" in done.stderr and "Traceback" not in done.stderr
