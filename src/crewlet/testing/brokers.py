"""Real brokers for tests: one server, or three members, that leave nothing behind.

Use them from the main thread. On Linux they die with it, however it ends.
"""

import signal
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from crewlet.supervisor.broker import Broker, BrokerPlan, ClusterPlan, PortInUse, free_ports

_TRIES = 5
_START_S = 30.0
_END_S = 30.0
"""What a busy machine may need for it."""


@dataclass(frozen=True, slots=True)
class Server:
    """One running server."""

    broker: Broker

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.broker.url,)

    @property
    def url(self) -> str:
        return self.broker.url

    def kill(self) -> None:
        """SIGKILL, seen to end."""
        self.broker.kill()

    def terminate(self) -> None:
        """SIGTERM, seen to end."""
        end_politely(self.broker)

    def restart(self, *, wait: bool = True) -> None:
        """Start again on the same port and store (ended first, politely, when it still runs)."""
        again(self.broker, wait=wait)

    def freeze(self) -> None:
        """SIGSTOP, seen to stop: it may go on for a moment after the signal was sent."""
        stop(self.broker)

    def thaw(self) -> None:
        self.broker.signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three members, by index 0 to 2."""

    members: tuple[Broker, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def index(self, server_name: str) -> int:
        """Which member has this server name (as the broker reports a stream's leader)."""
        return [member.plan.name for member in self.members].index(server_name)

    def kill(self, member: int) -> None:
        """SIGKILL, seen to end."""
        self.members[member].kill()

    def terminate(self, member: int) -> None:
        """SIGTERM, seen to end."""
        end_politely(self.members[member])

    def restart(self, member: int, *, wait: bool = True) -> None:
        """Start again on the same ports and store (ended first, politely, when it still runs)."""
        again(self.members[member], wait=wait)

    def freeze(self, member: int) -> None:
        """SIGSTOP, seen to stop."""
        stop(self.members[member])

    def thaw(self, member: int) -> None:
        self.members[member].signal(signal.SIGCONT)


@contextmanager
def one_server(path: Path, *, plan: BrokerPlan | None = None) -> Generator[Server]:
    """A server with JetStream on a free loopback port, its store under `path`."""
    made = replace(plan or BrokerPlan(), store_dir=path / "broker")
    broker = Broker.start(made, timeout_s=_START_S)
    try:
        if not broker.ready(_START_S):
            raise TimeoutError(f"JetStream did not answer: {broker.log_tail()}")
        yield Server(broker)
    finally:
        broker.stop(timeout_s=_END_S)


@contextmanager
def three_members(path: Path, *, token: str | None = None) -> Generator[Cluster]:
    """A cluster of three on free loopback ports, with a JetStream leader elected, stores under `path`."""
    with ExitStack() as stack:
        members = _start_members(path, token)
        for member in members:
            stack.callback(member.stop, _END_S)
        for member in members:
            if not member.ready(_START_S):
                raise TimeoutError(f"JetStream did not answer: {member.log_tail()}")
        yield Cluster(members)


def _start_members(path: Path, token: str | None) -> tuple[Broker, ...]:
    for attempt in range(_TRIES):
        ports = free_ports(3)
        peers = tuple(f"127.0.0.1:{port}" for port in ports)
        plans = [
            BrokerPlan(
                name=f"m{index}",
                store_dir=path / f"broker-{index}",
                token=token,
                cluster=ClusterPlan("crewlet-test", port, peers),
            )
            for index, port in enumerate(ports)
        ]
        started: list[Broker] = []
        try:
            for plan in plans:
                started.append(Broker.launch(plan))
            for broker in started:
                broker.wait_listening(_START_S)
        except BaseException as error:
            for broker in started:
                broker.stop(timeout_s=1.0)
            if isinstance(error, PortInUse) and attempt + 1 < _TRIES:
                continue
            raise
        return tuple(started)
    raise AssertionError("unreachable")


def stop(broker: Broker) -> None:
    """SIGSTOP a server, and wait until none of its threads runs any more."""
    broker.signal(signal.SIGSTOP)
    if broker.pid is not None:
        server = psutil.Process(broker.pid)
        until = time.monotonic() + _END_S
        while server.status() != psutil.STATUS_STOPPED and time.monotonic() < until:
            time.sleep(0.001)


def end_politely(broker: Broker) -> None:
    """SIGTERM a server and see it end; its store stays locked for a restart."""
    broker.signal(signal.SIGTERM)
    broker.wait_exit(_END_S)


def again(broker: Broker, *, wait: bool = True) -> None:
    """Start a server again on its own port and store; with `wait`, return when JetStream answers."""
    if broker.exit_code() is None:
        end_politely(broker)
    for attempt in range(_TRIES):
        try:
            broker.relaunch()
            broker.wait_listening(_START_S)
        except PortInUse:
            if attempt + 1 == _TRIES:
                raise
            continue
        break
    if wait and not broker.ready(_START_S):
        raise TimeoutError(f"JetStream did not answer: {broker.log_tail()}")
