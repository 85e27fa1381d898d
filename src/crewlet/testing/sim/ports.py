"""What a simulated node has of the world: the same bundle of ports for a fleet under faults and for a test of seats."""

import math
from collections.abc import Callable

from crewlet.node.assembly import Node
from crewlet.node.bundle import Ports
from crewlet.ports.cells import CellStore
from crewlet.ports.clock import Clock
from crewlet.ports.deadline import Deadline, NoDeadline
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import History, NoHistory
from crewlet.ports.mail import Mail
from crewlet.ports.programs import Programs
from crewlet.ports.tools import ToolServers
from crewlet.testing.sim.cells import SimStore
from crewlet.testing.sim.signals import SignalHub, SimSignals
from crewlet.testing.sim.wire import Wire
from crewlet.testing.twins.mail import TwinMail


def ports_over(
    wire: Wire,
    cells: CellStore,
    make_mail: Callable[[], TwinMail],
    signals: SignalHub,
    *,
    clock: Clock,
    entropy: Entropy,
    programs: Programs,
    deadline: Deadline | None = None,
    history: History | None = None,
    tool_servers: ToolServers | None = None,
) -> Ports:
    """The ports of one node incarnation.

    Args:
        wire: its connection.
        cells, make_mail, signals: the store, its mail and the broker's signals, over that connection.
    """
    mails: list[TwinMail] = []

    async def open_mail(ack_window_s: float) -> Mail:
        del ack_window_s  # the broker's own
        mail = make_mail()
        await mail.start()
        mails.append(mail)
        return mail

    async def close_mail() -> None:
        for mail in mails:
            await mail.stop()

    return Ports(
        lease_cells=cells,
        cells=cells,
        open_mail=open_mail,
        close_mail=close_mail,
        is_linked=lambda: True,
        programs=programs,
        signals=SimSignals(signals, wire, wire.own),
        clock=clock,
        entropy=entropy,
        deadline=deadline or NoDeadline(),
        leases_can_lapse=True,
        slowest_beat_s=math.inf,  # five to a TTL: the judge asks whether any came within one
        history=history or NoHistory(),
        tool_servers=tool_servers,
    )


async def bring_up(node: Node, clock: Clock) -> None:
    """Open a node, which a broker that does not answer holds up, and start it."""
    while True:
        try:
            await node.open()
            break
        except Unavailable:
            await clock.sleep(1.0)
    await node.start()


def hang_up(wire: Wire, store: SimStore, signals: SignalHub) -> None:
    """A connection is gone for good: nobody watches or listens over it any more."""
    signals.forget(wire)
    for bucket in store.buckets.values():
        bucket.forget(wire)
