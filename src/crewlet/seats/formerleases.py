"""Leases that nodes share on a broker, where a node is about to keep its own: never both at once."""

import structlog

from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.clock import Clock
from crewlet.seats.lease import NODE, SEAT
from crewlet.seats.leases import LeaseStore

_LOOK_EVERY_S = 0.5
_LATENESS_S = 5.0

_log = structlog.get_logger()


async def sharing(shared: LeaseStore) -> list[str]:
    """The owners of what nodes hold and share there now.

    Raises:
        Unavailable: nobody answered.
    """
    held = [*await shared.list_live(NODE), *await shared.list_live(SEAT)]
    return sorted({lease.owner for lease in held})


async def wait_until_free(shared: LeaseStore, clock: Clock) -> None:
    """Wait until no lease of a node or seat is live any more, as after a crash: for a TTL and a little.

    Raises:
        ConfigRefused: somebody renews them, and so runs the seats.
        Unavailable: nobody answered.
    """
    until = clock.elapsed() + shared.ttl_s + _LATENESS_S
    is_told = False
    while owners := await sharing(shared):
        if clock.elapsed() >= until:
            raise ConfigRefused(
                f"{', '.join(owners)} holds leases of this company on this broker, and local leases are not seen by it",
                where="coordination.type",
                remedy="stop it first, or write embedded-kv",
            )
        if not is_told:
            _log.warning("shared_leases_awaited", owners=owners, ttl_s=shared.ttl_s)
        is_told = True
        await clock.sleep(_LOOK_EVERY_S)
