"""A parent under test over stand-in nodes, and what its processes tell."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from crewlet.supervisor.plan import UpPlan
from crewlet.supervisor.spawn import spawn

MARK = "CREWLET_TEST_MARK"

RUN = (
    "import sys\nfrom crewlet.supervisor import parent, plan\nsys.exit(parent.run(plan.UpPlan.from_json(sys.argv[1])))"
)

PRELUDE = """
import faulthandler, os, signal, socket, subprocess, sys, time
from pathlib import Path
from crewlet.supervisor.page import PAGE_ENV, PageDeadline, boottime
here = Path(os.environ["HERE"])
page = PageDeadline.open(int(os.environ[PAGE_ENV]))
mark = f"CREWLET_TEST_MARK={os.environ['CREWLET_TEST_MARK']}".encode()

def marked():
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            pass
    return found

def tell(name, text=""):
    new = here / f".{name}"
    new.write_text(str(text))
    new.rename(here / name)

starts = here / "starts"
with starts.open("a") as log:
    log.write(f"{os.getpid()}\\n")
is_first = len(starts.read_text().split()) == 1
if not is_first:
    tell("strangers", [pid for pid in marked() if pid not in (os.getpid(), os.getppid())])

def detach(run):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            run()
        os._exit(0)

def linger():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(600)
"""


def eventually(holds: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


@dataclass
class Up:
    """One parent under test, told apart from everything else by a mark in its environment.

    Attributes:
        run: the Python that it runs, and `prefix` what comes before the interpreter on its command line.
    """

    here: Path
    plan: UpPlan
    run: str = RUN
    prefix: tuple[str, ...] = ()
    mark: str = field(default_factory=lambda: uuid4().hex)
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        env = {**os.environ, MARK: self.mark, "HERE": str(self.here)}
        with self.log.open("ab") as log:
            argv = [*self.prefix, sys.executable, "-c", self.run, self.plan.to_json()]
            self.process = spawn(argv, env=env, stdout=log, stderr=log)

    @property
    def log(self) -> Path:
        return self.here / "up.log"

    def said(self) -> str:
        return self.log.read_text()

    def told(self, name: str) -> str:
        """What the node told under this name, once it did."""
        eventually((self.here / name).exists, f"the node told {name}; {self.said()}")
        return (self.here / name).read_text()

    def nodes(self) -> list[int]:
        """Process ids of the nodes that were started, oldest first."""
        path = self.here / "starts"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def node(self, nth: int = 0) -> int:
        eventually(lambda: len(self.nodes()) > nth, f"node {nth} started; {self.said()}")
        return self.nodes()[nth]

    def broker(self, nth: int = 0) -> tuple[int, int]:
        """Process id and port of the broker, as the parent's line says."""
        eventually(lambda: len(re.findall(r"listens on", self.said())) > nth, "the broker listens")
        found = re.findall(r"listens on nats://127.0.0.1:(\d+) \(process (\d+)\)", self.said())[nth]
        return int(found[1]), int(found[0])

    def exit_code(self) -> int:
        return self.process.wait(60)

    def marked(self) -> list[int]:
        """Live processes that came of it."""
        needle = f"{MARK}={self.mark}".encode()
        found: list[int] = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and needle in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
            except OSError:
                pass
        return found

    def clear(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        while left := self.marked():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def finish(code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python to its end."""
    return subprocess.run(
        [sys.executable, "-c", code, *argv],
        env={**os.environ, **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
