"""One seat's dispatch over real mail: on the twin in virtual time, and on a real broker with its ledger there."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mail_worlds import NatsWorld, TwinWorld

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import Company, Seat
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.outbox import Outbox
from crewlet.ports.mail import Attachment
from crewlet.ports.term import Term
from crewlet.seats.fence import SeatFence
from crewlet.testing.contracts.mailworld import LiveMail
from crewlet.turns.dispatch import SeatDispatch
from crewlet.turns.slots import Slots
from crewlet.turns.turn import Runner, Turn, TurnResult

Script = Callable[[Turn], Awaitable[TurnResult]]


@dataclass
class Scripted:
    """Runs a function of the test as the turn, and keeps the ids that each turn was given."""

    script: Script
    kind: str = "scripted"
    ran: list[list[str]] = field(default_factory=list[list[str]])

    async def run(self, turn: Turn) -> TurnResult:
        self.ran.append([event.id for event in turn.mail])
        return await self.script(turn)


@dataclass
class SeatAtWork:
    """A seat with its inbox attached."""

    handle: str
    mail: LiveMail
    ledger: Ledger
    outbox: Outbox
    attachment: Attachment

    async def send(self, *ids: str, conversation: str = "", body: str = "") -> None:
        for number, message_id in enumerate(ids):
            stamp = f"2030-01-01T00:00:{number:02}Z"
            await self.outbox.post(
                Envelope(
                    id=message_id,
                    type="external_notification",
                    timestamp=stamp,
                    source="person",
                    to=self.handle,
                    conversation=conversation,
                    body=body,
                )
            )


async def seat_at_work(
    world: TwinWorld | NatsWorld, runner: Runner, *, seat: Seat | None = None, epoch: int = 1, batch: int = 10
) -> SeatAtWork:
    """Attach a seat on a client of its own. Its handle is the world's own unless `seat` brings one."""
    mail = await world.client()
    if isinstance(world, TwinWorld):
        cells = await LocalCells(world.clock).open(LEDGER_BUCKET)
    else:
        cells = await NatsCells(world.connections[-1], entropy=world.entropy).open(LEDGER_BUCKET)
    seat = seat or Seat(f"seat-{world.topic('x').split('.')[2]}")
    ledger, company = Ledger(cells), Company("acme", (seat,))
    outbox = Outbox(mail, lambda: company, world.clock, "node-a")
    fence = SeatFence(Term(f"seat:{seat.handle}", "node-a:1", epoch), world.clock, math.inf)
    dispatch = SeatDispatch(
        seat,
        may_start=lambda _: epoch,
        note_deferral=lambda _: None,
        fence=lambda _: fence,
        holds=lambda _: (),
        ledger=ledger,
        outbox=outbox,
        runner=runner,
        slots=Slots(),
        clock=world.clock,
        entropy=SystemEntropy(),
    )
    attachment = await mail.attach(
        topics.inbox(seat.handle), dispatch, good_until=math.inf, options=dispatch.batches(batch, 0.0)
    )
    return SeatAtWork(seat.handle, mail, ledger, outbox, attachment)
