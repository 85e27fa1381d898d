"""The duties of one node: which there are, put together, and what can be seen and asked of them from outside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crewlet.company.model import Company
from crewlet.duties.answering import ChannelSweep
from crewlet.duties.asking import Asking
from crewlet.duties.fires import FIRES_BUCKET, Fires
from crewlet.duties.firing import Firing
from crewlet.duties.frame import Duties, Tick
from crewlet.duties.maintenance import Maintenance
from crewlet.duties.retiring import MailboxSweep
from crewlet.duties.scheduling import Scheduler
from crewlet.kit.beats import Beats
from crewlet.mail.channels import Channels
from crewlet.mail.events import Tell
from crewlet.mail.mailboxes import Mailboxes
from crewlet.mail.outbox import Outbox
from crewlet.mail.pauses import Pauses
from crewlet.mail.registry import MAILBOXES_BUCKET, MailboxRegistry
from crewlet.mail.retired import RETIREMENTS_BUCKET, Retirements
from crewlet.node.dutystatus import DutiesSnapshot, DutySnapshot, TickSnapshot
from crewlet.node.roster import FleetRoster
from crewlet.node.scheduledesk import ScheduleDesk
from crewlet.ports.cells import Cells, CellStore
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.mail import Mail
from crewlet.seats.dutyleases import DUTIES_BUCKET, DutyLeases
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore

WORKERS_ROLE = "workers"
ANSWER_WITHIN_S = 10.0
"""How long whoever asks for a tick waits for its end."""


class DutyDesk:
    """What `crewlet duty` and the API show and ask. Every node answers a list alike, but for its own last ticks."""

    def __init__(
        self, duties: Duties, leases: DutyLeases | None, bucket: Cells | None, *, node_id: str, owner: str
    ) -> None:
        self._duties = duties
        self._leases = leases
        self._bucket = bucket
        self._node_id = node_id
        self._owner = owner

    async def list(self) -> DutiesSnapshot:
        """Every duty, who does it, and how it last went here.

        Raises:
            Unavailable: the leases cannot be read.
        """
        held = {}
        now = None
        if self._leases is not None and self._bucket is not None:
            held = {lease.name: lease for lease in await self._leases.list_live()}
            now = (await self._bucket.mark()).store_now
        rows: list[DutySnapshot] = []
        for duty in self._duties.all:
            lease = held.get(duty.name)
            is_alone = self._leases is None and self._duties.may_work
            owner = lease.owner if lease else self._owner if is_alone else None
            rows.append(
                DutySnapshot(
                    name=duty.name,
                    purpose=duty.purpose,
                    every_s=duty.every_s,
                    node=owner.rpartition(":")[0] if owner else None,
                    owner=owner,
                    since=lease.acquired_at if lease else None,
                    expires_in=round(max(0.0, (lease.expires_at - now).total_seconds()), 3) if lease and now else None,
                    last_here=_shown(self._duties.last(duty.name)),
                )
            )
        return DutiesSnapshot(self._node_id, self._duties.may_work, tuple(rows))

    async def run(self, name: str) -> TickSnapshot:
        """Do one tick of a duty on this node now. `running`: it has not ended within `ANSWER_WITHIN_S`, and goes on.

        Raises:
            UnknownDuty: there is no such duty.
            NotOnDuty: this node does no duties, or is stopping.
        """
        tick = await self._duties.run(name, wait_s=ANSWER_WITHIN_S)
        return _shown(tick) or TickSnapshot("running")


@dataclass(frozen=True, slots=True)
class CompanyWork:
    """A node's half of what belongs to the company: its mailboxes, its roster and its duties.

    Attributes:
        mailboxes: makes and registers the seats' mailboxes.
        registry: which mailboxes were made.
        retirements: what became of the mail of removed seats.
        roster: which seats the fleet agrees on.
        duties: to start and stop.
        desk: to show and ask.
        schedules: to show.
    """

    mailboxes: Mailboxes
    registry: MailboxRegistry
    retirements: Retirements
    roster: FleetRoster
    duties: Duties
    desk: DutyDesk
    schedules: ScheduleDesk


async def open_company_work(
    *,
    node_id: str,
    owner: str,
    roles: frozenset[str],
    grace_s: float,
    maintenance_every_s: float,
    company: Callable[[], Company],
    lease_cells: CellStore,
    cells: CellStore,
    leases: LeaseStore,
    mail: Mail,
    outbox: Outbox,
    channels: Cells,
    pauses: Cells,
    budgets: Cells,
    clock: Clock,
    entropy: Entropy,
    has_peers: bool,
    beats: Beats,
    tell: Tell,
) -> CompanyWork:
    """Open the registry and the duties' leases, and put the duties together. Nothing ticks yet.

    Args:
        grace_s: how long a removed seat's mail is kept.
        maintenance_every_s: from one tick of that duty to the next.
        channels: the bucket of the questions between seats.
        pauses: the bucket of what people paused.
        budgets: the bucket of what models used.
        has_peers: whether another node may do a duty; if not, none is leased.
        beats: where the duties say that they turn.
        tell: publishes what happened.

    Raises:
        Unavailable: nobody answered within the bring-up budget.
    """
    records = await cells.open(MAILBOXES_BUCKET)
    registry = MailboxRegistry(records)
    mailboxes = Mailboxes(mail, clock, alarm_after_s=leases.ttl_s, registry=registry)
    roster = FleetRoster(company, leases, owner)
    retirements = Retirements(lambda: cells.open(RETIREMENTS_BUCKET))
    sweep = MailboxSweep(
        registry,
        mailboxes,
        mail,
        retirements,
        leases,
        roster.agreed,
        node_id=node_id,
        clock=clock,
        entropy=entropy,
        grace_s=grace_s,
    )
    ageless: Sequence[Cells] = [records, channels, pauses, budgets]
    duty_leases, bucket = None, None
    if has_peers:
        bucket = await lease_cells.open(DUTIES_BUCKET)
        epochs = await lease_cells.open(EPOCHS_BUCKET)
        ageless = [*ageless, epochs]
        duty_leases = DutyLeases(bucket, epochs, clock=clock, entropy=entropy)
    answering = ChannelSweep(Channels(channels), outbox, Asking(leases.ttl_s, clock))
    ask = Asking(leases.ttl_s, clock)
    fired = await cells.open(FIRES_BUCKET)
    fires = Fires(fired, ask)
    firing = Firing(fires, outbox, ask, owner=owner, tell=tell)
    every = [
        Maintenance(sweep, ageless, answering, every_s=maintenance_every_s).duty(),
        Scheduler(company, fires, firing, Pauses(pauses), ask, roster.agree_on_schedules).duty(),
    ]
    duties = Duties(every, duty_leases, owner=owner, may_work=WORKERS_ROLE in roles, clock=clock, beats=beats)
    desk = DutyDesk(duties, duty_leases, bucket, node_id=node_id, owner=owner)
    return CompanyWork(
        mailboxes,
        registry,
        retirements,
        roster,
        duties,
        desk,
        ScheduleDesk(company, Fires(fired, Asking(leases.ttl_s, clock))),
    )


def _shown(tick: Tick | None) -> TickSnapshot | None:
    return None if tick is None else TickSnapshot(tick.outcome, tick.detail, tick.began_at)
