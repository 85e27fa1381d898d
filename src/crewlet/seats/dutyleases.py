"""Leases of singleton duties, `worker:{duty}`: a bucket of their own, and each the TTL its work asks for."""

from crewlet.ports.cells import BucketSpec, Cells
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Misuse
from crewlet.seats.lease import DUTY, LEASE_PROTOCOL, ClaimResult, Lease
from crewlet.seats.leases import LeaseStore

SHORTEST_S = 30.0
LONGEST_S = 3 * 3600.0

DUTIES_BUCKET = BucketSpec("crewlet_duties", max_age_s=LONGEST_S, allows_entry_ttl=True)


class DutyLeases:
    """Who does a duty for the company. Claimed at each tick, so that there is no hand-over; never gated.

    Args:
        duties: the bucket `DUTIES_BUCKET`.
        epochs: the bucket of counters, shared with the seats.
    """

    def __init__(
        self, duties: Cells, epochs: Cells, *, clock: Clock, entropy: Entropy, protocol: int = LEASE_PROTOCOL
    ) -> None:
        self._leases = LeaseStore(duties, epochs, clock=clock, entropy=entropy, protocol=protocol, has_entry_ttl=True)

    async def claim(self, duty: str, owner: str, *, ttl_s: float) -> ClaimResult:
        """Take a duty, or keep it at the same epoch for another `ttl_s`.

        Args:
            duty: its name.
            owner: one process incarnation.
            ttl_s: 30 s to 3 h, from this claim on.

        Raises:
            Misuse: an argument is outside its range.
            Unavailable: it is not known to be granted: the tick is skipped.
        """
        if not SHORTEST_S <= ttl_s <= LONGEST_S:
            raise Misuse(f"a duty is leased for {SHORTEST_S:g} to {LONGEST_S:g} s, not {ttl_s!r}")
        return await self._leases.claim(_resource(duty), owner, ttl_s=ttl_s)

    async def release(self, duty: str, owner: str, epoch: int) -> bool:
        """Give a duty back. True: it was this owner's.

        Raises:
            Misuse, Unavailable: as `LeaseStore.release`.
        """
        return await self._leases.release(_resource(duty), owner, epoch)

    async def get(self, duty: str) -> Lease | None:
        """Who does it now, or None.

        Raises:
            Misuse, Unavailable.
        """
        return await self._leases.get(_resource(duty))

    async def list_live(self) -> list[Lease]:
        """Every duty that somebody does now. `Lease.name` is the duty.

        Raises:
            Unavailable: nobody answered.
        """
        return await self._leases.list_live(DUTY)

    async def stop(self) -> None:
        """End what is still being given back. Leases stay as they are."""
        await self._leases.stop()


def _resource(duty: str) -> str:
    return f"{DUTY}:{duty}"
