"""One real nats-server under our own launcher."""

import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from standins import eventually, is_running

from crewlet.supervisor.broker import (
    Broker,
    BrokerFailed,
    BrokerPlan,
    BrokerRefused,
    ClusterPlan,
    PortInUse,
    ServerNotFound,
    StoreInUse,
    find_server,
    free_port,
)
from crewlet.testing.brokers import one_server, three_members

pytestmark = [pytest.mark.real, pytest.mark.process]


def can_be_served(store: Path) -> bool:
    try:
        Broker.start(BrokerPlan(store_dir=store)).stop()
    except StoreInUse:
        return False
    return True


def test_a_server_comes_up_on_a_free_port_with_jetstream(tmp_path: Path) -> None:
    with one_server(tmp_path) as server:
        assert server.broker.port > 0
        assert server.broker.ready(30.0)
        assert server.broker.monitor_url is not None
    assert server.broker.exit_code() == 0


def test_a_store_is_served_by_one_broker_and_the_second_is_told_path_and_process(tmp_path: Path) -> None:
    with one_server(tmp_path) as server, pytest.raises(StoreInUse) as refused:
        Broker.start(BrokerPlan(store_dir=tmp_path / "broker"))
    assert str(tmp_path / "broker") in str(refused.value)
    assert f"process {server.broker.pid}" in str(refused.value)
    Broker.start(BrokerPlan(store_dir=tmp_path / "broker")).stop()


def test_the_store_stays_locked_while_the_server_lives_though_its_starter_let_go(tmp_path: Path) -> None:
    with one_server(tmp_path) as server:
        os.close(server.broker._lock_fd)  # pyright: ignore[reportPrivateUsage]
        server.broker._lock_fd = -1  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(StoreInUse):
            Broker.launch(BrokerPlan(store_dir=tmp_path / "broker"))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            PortInUse, match=f"port {port} is already in use; set stream.port to auto or to a free port"
        ):
            Broker.start(BrokerPlan(store_dir=tmp_path / "b", port=port))
        # Nothing is left locked either.
        Broker.start(BrokerPlan(store_dir=tmp_path / "b")).stop()


def test_a_foreign_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    with one_server(tmp_path) as server, pytest.raises(PortInUse):
        Broker.start(BrokerPlan(store_dir=tmp_path / "other", port=server.broker.port))


def test_a_server_that_ends_shows_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="invalid duration"):
        Broker.start(BrokerPlan(store_dir=tmp_path, sync_interval="bogus"))


def test_a_killed_server_comes_back_on_its_port_and_store(tmp_path: Path) -> None:
    with one_server(tmp_path) as server:
        url, first = server.url, server.broker.pid
        server.kill()
        server.restart()
        assert server.url == url
        assert server.broker.pid != first


def test_a_server_dies_with_its_starter_and_frees_the_store(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from crewlet.supervisor.broker import Broker, BrokerPlan\n"
        "print(Broker.start(BrokerPlan(store_dir=Path(sys.argv[1]))).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_running(pid)
        starter.kill()
    eventually(lambda: not is_running(pid), "the broker died with its starter")
    eventually(lambda: can_be_served(tmp_path), "the store is free once every thread of the server is gone")


def test_a_frozen_server_is_ended_too(tmp_path: Path) -> None:
    broker = Broker.start(BrokerPlan(store_dir=tmp_path))
    broker.signal(signal.SIGSTOP)
    broker.stop(timeout_s=5.0)
    assert broker.exit_code() is not None


def test_without_a_store_nothing_is_left_on_disk() -> None:
    broker = Broker.start(BrokerPlan())
    assert broker.ready(30.0)
    broker.stop()
    assert not broker.home.exists()


def test_a_token_is_asked_for_and_kept_from_other_users(tmp_path: Path) -> None:
    broker = Broker.start(BrokerPlan(store_dir=tmp_path, token='a "quoted" töken'))
    try:
        assert broker.ready(30.0)
        assert stat.S_IMODE((tmp_path / "nats-server.conf").stat().st_mode) == 0o600
        broker.plan = replace(broker.plan, token="wrong")
        assert not broker.is_listening()
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (BrokerPlan(host="0.0.0.0"), "without a token"),
        (BrokerPlan(name="a b"), "cannot be named"),
        (BrokerPlan(cluster=ClusterPlan("c", 0, ())), "cluster port"),
        (BrokerPlan(cluster=ClusterPlan("c", 6222, (), host="0.0.0.0")), "without a secret"),
    ],
)
def test_a_plan_that_opens_the_mail_to_strangers_or_cannot_run_is_refused(plan: BrokerPlan, says: str) -> None:
    with pytest.raises(BrokerRefused, match=says):
        Broker.launch(plan)


def test_a_named_server_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.access(find_server(), os.X_OK)
    monkeypatch.setenv("CREWLET_NATS_SERVER", "/nowhere/nats-server")
    with pytest.raises(ServerNotFound, match="/nowhere/nats-server"):
        find_server()


def test_a_member_without_its_quorum_listens_but_is_not_ready(tmp_path: Path) -> None:
    peers = tuple(f"127.0.0.1:{free_port()}" for _ in range(3))
    port = int(peers[0].rpartition(":")[2])
    broker = Broker.start(BrokerPlan(store_dir=tmp_path, cluster=ClusterPlan("c", port, peers)))
    try:
        assert broker.is_listening()
        assert not broker.ready(0.5)
    finally:
        broker.stop()


@pytest.mark.cluster
def test_three_members_elect_a_leader_and_take_a_member_back(tmp_path: Path) -> None:
    with three_members(tmp_path, token="secret") as cluster:
        assert len(set(cluster.urls)) == 3
        url = cluster.urls[1]
        cluster.terminate(1)
        cluster.restart(1)
        assert cluster.urls[1] == url
    assert [member.exit_code() for member in cluster.members] == [0, 0, 0]
