"""What all machines of a simulation share."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass

from crewlet.testing.sim.cells import SimStore
from crewlet.testing.sim.company import Roll
from crewlet.testing.sim.history import History
from crewlet.testing.sim.judge import Judge
from crewlet.testing.sim.loop import SimLoop
from crewlet.testing.sim.mail import SimMailBroker
from crewlet.testing.sim.people import People
from crewlet.testing.sim.signals import SignalHub
from crewlet.testing.sim.wire import Broker


@dataclass(frozen=True, slots=True)
class Stage:
    """What all machines of a simulation share."""

    loop: SimLoop
    seed: int
    roll: Roll
    history: History
    judge: Judge
    broker: Broker
    store: SimStore
    mail: SimMailBroker
    signals: SignalHub
    people: People
    calm: "Calm"
    world: Context
    ttl_s: float
    grace_s: float


class Calm:
    """For how long nothing has been going wrong."""

    def __init__(self) -> None:
        self._active = 0
        self._since = 0.0

    @contextmanager
    def broken(self) -> Generator[None]:
        """Something goes wrong in here."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._since = asyncio.get_running_loop().time()

    def lasts(self, seconds: float) -> bool:
        return self._active == 0 and asyncio.get_running_loop().time() - self._since > seconds
