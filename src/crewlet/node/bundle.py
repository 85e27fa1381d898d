"""What a node is given: the ports through which it meets the world, and what it is itself."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from crewlet.duties.maintenance import EVERY_S
from crewlet.kit.beats import SLOWEST_BEAT_S
from crewlet.mail.retirement import GRACE_S
from crewlet.ports.cells import BucketSpec, Cells, CellStore
from crewlet.ports.clock import Clock
from crewlet.ports.deadletters import DeliveryJournal
from crewlet.ports.deadline import Deadline
from crewlet.ports.entropy import Entropy
from crewlet.ports.history import History, NoHistory
from crewlet.ports.mail import Mail
from crewlet.ports.programs import Programs
from crewlet.ports.signals import Signals
from crewlet.ports.stores import Stores
from crewlet.ports.tools import ToolServers
from crewlet.seats.lease import LEASE_PROTOCOL


@dataclass(frozen=True, slots=True)
class Ports:
    """What a node needs of the world.

    Attributes:
        lease_cells: where leases and epochs live: in this process under `coordination.type: local`.
        cells: where every other shared record lives: always on the stream.
        open_mail: opens mail with an ack window in seconds.
        close_mail: closes it.
        is_linked: whether the broker's connection is up.
        links: how often it came up again.
        is_gone: whether it does not come back by itself, so that a drain waits for no turn; None where that cannot be.
        signals: by which the nodes hear of each other at once; nothing rests on one.
        leases_can_lapse: whether a peer could take over; false under `local`.
        slowest_beat_s: how long the loops may be silent in `Node.beats` while all is well, at most.
        history: where this node keeps what it did.
        give_back_left: hands back the mail that a dead process of this node had in hand, where no other can be alive;
            None where leases tell who may.
        may_meet_other_kind: whether nodes of the other kind of coordination may come to the broker.
        find_former: a bucket of leases or epochs by the other kind of coordination: this node's own, where leases are
            shared, else the broker's. None where there was none.
        stores: looks at what the broker keeps; None where nobody could take anything away.
        tool_servers: makes the servers of seats that have some; None makes none, and refuses those seats.
    """

    lease_cells: CellStore
    cells: CellStore
    open_mail: Callable[[float], Awaitable[Mail]]
    close_mail: Callable[[], Awaitable[None]]
    is_linked: Callable[[], bool]
    programs: Programs
    signals: Signals
    clock: Clock
    entropy: Entropy
    deadline: Deadline
    leases_can_lapse: bool
    slowest_beat_s: float = SLOWEST_BEAT_S
    links: Callable[[], int] = lambda: 0
    is_gone: Callable[[], bool] | None = None
    may_meet_other_kind: bool = False
    history: History = field(default_factory=NoHistory)
    tool_servers: ToolServers | None = None
    give_back_left: Callable[[DeliveryJournal], Awaitable[int]] | None = None
    find_former: Callable[[BucketSpec], Awaitable[Cells | None]] | None = None
    stores: Stores | None = None


def _no_variable(name: str) -> None:
    del name


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What one node is.

    Attributes:
        node_id: distinct in the fleet and stable across restarts.
        owner: this incarnation, `{node_id}:{random}`.
        roles: what it will do; `seats` among them lets it hold seats.
        labels: what placements select it by.
        max_concurrent: turns at once, 1 or more.
        lease_ttl_s: the TTL asked for; a bucket that a peer made decides.
        program_env: variables that every program of a seat gets.
        company_dir: the folder of the company document: where programs run unless their seat says otherwise.
        handoff_wait_s: how long a hand-over other than a drain waits for the running turn.
        lease_protocol: what holding a lease means to this build.
        removed_seat_grace_s: how long the mail of a seat that left the company is kept.
        maintenance_every_s: from one tick of the duty that sees to it to the next.
        variable: the value of a variable of this node by its name, for what the company document refers to.
    """

    node_id: str
    owner: str
    roles: frozenset[str]
    labels: Mapping[str, str]
    max_concurrent: int
    lease_ttl_s: float
    program_env: Mapping[str, str]
    company_dir: str | None = None
    handoff_wait_s: float = 600.0
    lease_protocol: int = LEASE_PROTOCOL
    removed_seat_grace_s: float = GRACE_S
    maintenance_every_s: float = EVERY_S
    variable: Callable[[str], str | None] = _no_variable
