"""The process that gives back what a dead node had, as its parent sees it."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from crewlet.supervisor.broker import Broker
from crewlet.supervisor.brokerplan import reachable
from crewlet.supervisor.giveback import LONGEST_S, TOKEN_ENV
from crewlet.supervisor.page import PAGE_ENV, Page, boottime
from crewlet.supervisor.spawn import spawn

_GRACE_S = 5.0


class GivingBack:
    """One helper for one dead node. The page may be let go of as soon as this is made.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, page: Page, broker: Broker) -> None:
        environment = {**os.environ, PAGE_ENV: str(page.fd)}
        if broker.plan.token is not None:
            environment[TOKEN_ENV] = broker.plan.token
        argv = ("-P", "-m", "crewlet.supervisor.giveback", str(broker.home), reachable(broker.plan.host))
        self._process: subprocess.Popen[bytes] = spawn([sys.executable, *argv], env=environment, pass_fds=(page.fd,))
        self._give_up_at = boottime() + LONGEST_S + _GRACE_S

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it ended; it is killed when it is far past its time. Reaps it."""
        if self._process.poll() is None and boottime() >= self._give_up_at:
            self.kill()
        return self._process.returncode is not None

    def wait(self, timeout_s: float) -> None:
        """Wait for it, and end it when it has not ended by then."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it at once, and reap it. Harmless when it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
