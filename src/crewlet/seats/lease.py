"""The values of the lease layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from crewlet.ports.term import Term

LEASE_PROTOCOL = 4
"""What holding a seat's lease means to this build. Raised only when it comes to mean something a build before could
not honour; never for a new field. At 4 the holder consults and settles the completion ledger, satisfies the seat's
placement, and charges windowed token counters."""

SEAT = "seat"
NODE = "node"
DUTY = "worker"


def seat_resource(handle: str) -> str:
    """The resource that a seat's holder leases."""
    return f"{SEAT}:{handle}"


def node_resource(node_id: str) -> str:
    """The resource by which a node's presence is counted."""
    return f"{NODE}:{node_id}"


class Lease(msgspec.Struct, frozen=True):
    """A lease as the store has it.

    Attributes:
        resource: `class:name`.
        owner: the process incarnation that holds it.
        epoch: the tenure's fencing token.
        acquired_at: the store's clock at the write that won this tenure; renewals carry it unchanged.
        expires_at: the store's clock at the last write, plus the TTL. For people and for peers, never for the holder.
        preferred: the id of the node that would like it back, or None.
        meta: facts about the holder (a presence row's roles, labels and counts).
        protocol: the lease protocol of the build that holds it.
    """

    resource: str
    owner: str
    epoch: int
    acquired_at: datetime
    expires_at: datetime
    preferred: str | None = None
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    protocol: int = LEASE_PROTOCOL

    @property
    def term(self) -> Term:
        return Term(self.resource, self.owner, self.epoch)

    @property
    def name(self) -> str:
        """The part after the class: a seat's handle, a node's id."""
        return self.resource.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim won (or found the caller holding it already, at the same epoch)."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """The claim lost.

    Attributes:
        reason: `held` (a live tenure, or a claim about to become one) or `protocol` (a live lower-protocol lease).
        holder: the owner in the way, where one is known.
        floor: with `protocol`, the lowest protocol held.
    """

    reason: Literal["held", "protocol"]
    holder: str | None = None
    floor: int | None = None


ClaimResult = Granted | ClaimRefused
