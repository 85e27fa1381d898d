"""Does the duty `scheduler` as a node would, and is killed on the way: `before` its first mail leaves, or `after`."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.document import load_company
from crewlet.duties.asking import Asking
from crewlet.duties.fires import FIRES_BUCKET, Fires
from crewlet.duties.firing import Firing
from crewlet.duties.scheduling import TTL_S, Scheduler
from crewlet.mail import topics
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses
from crewlet.ports.mail import Published
from crewlet.seats.dutyleases import DUTIES_BUCKET, DutyLeases
from crewlet.seats.lease import Granted
from crewlet.seats.leases import EPOCHS_BUCKET

OWNER = "doomed:1"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyMail(NatsMail):
    """Mail whose first message is its process's last deed."""

    when = ""

    async def publish(
        self,
        topic: str,
        data: bytes,
        *,
        message_id: str,
        headers: dict[str, str] | None = None,
        once: str | None = None,
        admit: Callable[[], None] | None = None,
    ) -> Published:
        if self.when == "before":
            die()
        await super().publish(topic, data, message_id=message_id, headers=headers, once=once, admit=admit)
        die()
        raise AssertionError


async def agreed() -> None:
    """Nobody has another document here."""


async def main(url: str, document: Path, when: str) -> None:
    clock, entropy, company = SystemClock(), SystemEntropy(), load_company(document)
    connection = await Connection.open(BrokerAddress((url,)), clock=clock, startup_timeout_s=30)
    cells = NatsCells(connection, entropy=entropy)
    leases = DutyLeases(await cells.open(DUTIES_BUCKET), await cells.open(EPOCHS_BUCKET), clock=clock, entropy=entropy)
    mail = DeadlyMail(connection, clock=clock, entropy=entropy, ack_window_s=TTL_S)
    mail.when = when
    await mail.start()
    ask = Asking(TTL_S, clock)
    fires = Fires(await cells.open(FIRES_BUCKET), ask)
    firing = Firing(fires, Outbox(mail, lambda: company, clock, "doomed"), ask, owner=OWNER)
    scheduler = Scheduler(lambda: company, fires, firing, Pauses(await cells.open(PAUSES_BUCKET)), ask, agreed)
    seats = [schedule.seat for schedule in company.schedules]
    while True:
        assert isinstance(await leases.claim("scheduler", OWNER, ttl_s=TTL_S), Granted)
        print("holds the duty", file=sys.stderr, flush=True)
        if all([await mail.waiting(topics.inbox(seat)) is not None for seat in seats]):
            await scheduler.tick(lambda: None)
        await clock.sleep(0.5)


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
