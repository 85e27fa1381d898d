"""What a node shows of itself and of the fleet: frozen snapshots that the web and the command line print alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The facts of one node, from its own memory. A field that does not apply is None and left out when shown.

    Attributes:
        status: `ok`, `starting`, or `shutting_down`.
        node: its id.
        owner: this process incarnation.
        version: of Crewlet.
        started_at: wall clock.
        queue: whether the broker's connection is up: `connected` or `disconnected`.
        in_flight: turns running now.
        shutting_down: a drain has begun.
        seats: handles held and proven, sorted.
        stall_lag_seconds: for how long the worst loop here has not turned; None while all turn. Past the lease TTL the
            watchdog ends the process.
        unproven_seconds: by handle, for how long a teardown has been failing; None with none.
        nodes: live nodes at the last roster that could be read; None before the first.
        other_documents: live nodes whose company document names other seats than this node's, as of the same roster;
            None with none.
        lease_ttl_s: the TTL in force.
        has_presence: whether the other nodes count this one.
        presence_error: why it could not renew its presence the last time; None where it could.
        id_held_by: another process that has this node's id and so keeps it out of the fleet; a former run of it is that
            until its presence has lapsed. None without one.
        last_error: by handle, why its last turn broke; None with none.
        dead_letters: mail that this process dead-lettered since its start; None with none.
        failed_burials: how often it failed to, and left the mail where it was; None with none.
        held_back: by handle, why the inbox of a held seat is not being read: the holds in force, or what was refused
            last, such as `not_owned`; None when all are read.
        waiting: by handle, what a running turn waits for outside, its model's provider for one; None with none.
        store_faults: by name, what is wrong with a stream or bucket of the broker; None with none.
    """

    status: Literal["ok", "starting", "shutting_down"]
    node: str
    owner: str
    version: str
    started_at: datetime
    queue: Literal["connected", "disconnected"]
    in_flight: int
    shutting_down: bool
    seats: tuple[str, ...]
    lease_ttl_s: float
    has_presence: bool = True
    presence_error: str | None = None
    id_held_by: str | None = None
    stall_lag_seconds: float | None = None
    unproven_seconds: Mapping[str, float] | None = None
    nodes: int | None = None
    other_documents: tuple[str, ...] | None = None
    last_error: Mapping[str, str] | None = None
    dead_letters: int | None = None
    failed_burials: int | None = None
    held_back: Mapping[str, str] | None = None
    waiting: Mapping[str, str] | None = None
    store_faults: Mapping[str, str] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether work may be sent here."""
        return self.not_ready_reason is None

    @property
    def not_ready_reason(self) -> str | None:
        """`draining`, `starting`, `broker_unlinked` or `no_presence`; None when ready."""
        if self.shutting_down:
            return "draining"
        if self.status == "starting":
            return "starting"
        if self.queue != "connected":
            return "broker_unlinked"
        return None if self.has_presence else "no_presence"


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A live node, as its presence lease tells it. `expires_in` in seconds on the store's clock."""

    id: str
    roles: tuple[str, ...]
    labels: Mapping[str, str]
    owner: str
    protocol: int
    seats: int
    expires_in: float
    draining: bool = False
    seats_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class PauseSnapshot:
    """A pause in force.

    Attributes:
        id: names it, and no later pause of the seat.
        since: the store's clock when it began.
        by: who paused the seat, as they said, or "".
        reason: one line, or "".
        until: the store's time at which it ends by itself; None for never.
        stop_running: it stopped the turn that ran.
        messages_held: messages in the inbox, those of a turn that still runs included; None where nobody said.
    """

    id: str
    since: datetime
    by: str = ""
    reason: str = ""
    until: datetime | None = None
    stop_running: bool = False
    messages_held: int | None = None


@dataclass(frozen=True, slots=True)
class SeatPause:
    """What became of a pause or a resume for one seat.

    Attributes:
        is_changed: the request holds for it now; False where it was so before, or by another's word.
        pause: the pause in force afterwards, or None.
        messages_held: as of a pause, and after a resume what goes to the seat now.
    """

    handle: str
    is_changed: bool
    pause: PauseSnapshot | None = None
    messages_held: int | None = None


@dataclass(frozen=True, slots=True)
class SeatSnapshot:
    """A seat of the company and who holds it. With no holder what is of the holder is None.

    Attributes:
        runner: the kind of runner; `script` is labelled as such wherever it shows.
        placement: the selector in words, `anywhere` without one.
        acquired_at: the store's clock when the present tenure began.
        free_since: of a seat that nobody holds: the store's clock when it was given back; None where that is longer ago
            than a lease TTL, or its lease lapsed, as the bucket then forgets it.
        pause: why it takes no mail, if a person paused it.
    """

    handle: str
    title: str
    runner: str
    placement: str
    node: str | None = None
    owner: str | None = None
    epoch: int | None = None
    acquired_at: datetime | None = None
    expires_in: float | None = None
    pause: PauseSnapshot | None = None
    free_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """A seat that no live node may run."""

    handle: str
    placement: str


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet, read from the leases, so that every node answers alike.

    Attributes:
        pauses_known: false where nobody said which seats are paused.
        other_documents: live nodes whose company document names other seats than this node's.
        unplaceable: with no live node, none: what then keeps seats from being run is not their placement. Likewise
            `unmanned_roles`.
        disputed: with such nodes, the seats that nobody holds: of this node's document, or of any other that made a
            mailbox for them. Those that only a part of the fleet names may stay so until all have one document.
        strays: seats that are held and that this node's document does not name, with no title, runner or placement:
            one whose teardown is not proven, one that a peer's document names, or one whose mailbox is being retired.
    """

    company: str
    this_node: str
    nodes: tuple[NodeSnapshot, ...]
    seats: tuple[SeatSnapshot, ...]
    unplaceable: tuple[Unplaceable, ...] = ()
    unmanned_roles: tuple[str, ...] = ()
    pauses_known: bool = True
    other_documents: tuple[str, ...] = ()
    disputed: tuple[str, ...] = ()
    strays: tuple[SeatSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class SentMail:
    """The store holds the mail. `is_duplicate`: it had it already, and nothing was sent.

    Attributes:
        dead_letter: where the mail that it had used up its deliveries: its dead letter, which a replay puts back.
    """

    id: str
    is_duplicate: bool
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class MailOutcome:
    """What became of one mail to one seat.

    Attributes:
        state: `finished` with a completion on record; `open` while it waits or is worked; `dead_lettered` once its
            deliveries were used up; `unknown` where there is no trace of it: never sent, finished more than seven days
            ago, or gone with its mailbox or dead letter.
        outcome: the turn's outcome word, once finished.
        detail: one line: of what was finished, or why it came back the last time.
        turn_id: the run that finished it.
        recorded_at: the store's clock at the record or the burial.
        deliveries: how often it was handed over, where that is noted: mail that came back at least once.
        dead_letter: its dead letter's id.
    """

    id: str
    seat: str
    state: Literal["open", "finished", "dead_lettered", "unknown"]
    outcome: str | None = None
    detail: str = ""
    turn_id: str = ""
    recorded_at: datetime | None = None
    deliveries: int | None = None
    dead_letter: str | None = None
