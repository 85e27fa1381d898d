"""A look at the broker's streams and buckets now and then: what was deleted or spoilt by hand is said at once.

A broker that comes back may have forgotten leases that peers still act under. So nothing is claimed over a new link
before a look over it was answered or all leases from before it have lapsed, and nothing either until they have when
leases or their counters were reset.
"""

from collections.abc import Awaitable, Callable, Mapping

import structlog

from crewlet.kit.backoff import Backoff
from crewlet.ports.clock import Clock
from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.ports.stores import StoreFault, Stores
from crewlet.seats.leases import EPOCHS_BUCKET, leases_bucket

EVERY_S = 15.0
AGAIN_S = 0.5
"""How soon it looks once the connection is there again: a broker may have come back with less."""
EAGER_S = 2.0
"""The longest pause between two looks while claims wait for one."""
ALARM_EVERY_S = 300.0

_OF_LEASES = (leases_bucket(1.0).name, EPOCHS_BUCKET.name)

_log = structlog.get_logger()


class StoreCheck:
    """Looks at the stores, raises the alarm, and keeps what is wrong for whoever asks.

    Args:
        is_linked: whether the broker's connection is up.
        links: how often it came up again.
        lapse_s: for how long a lease is good at most, in seconds.
        stores: None where nobody could take anything away.
        on_reset: done when a store was made anew, emptied or put back, with its name.
    """

    def __init__(
        self,
        stores: Stores | None,
        clock: Clock,
        is_linked: Callable[[], bool],
        on_reset: Callable[[str], Awaitable[None]],
        *,
        links: Callable[[], int] = lambda: 0,
        lapse_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._stores = stores
        self._is_linked = is_linked
        self._clock = clock
        self._on_reset = on_reset
        self._faults: tuple[StoreFault, ...] = ()
        self._alarmed_at: dict[StoreFault, float] = {}
        self._links = links
        self._lapse_s = lapse_s
        self._looked_over = self._newest_link = links()
        self._newest_link_at = 0.0
        self._claims_from = 0.0

    @property
    def faults(self) -> Mapping[str, str]:
        """What is wrong at the last look that was answered, by store."""
        reasons: dict[str, list[str]] = {}
        for fault in self._faults:
            reasons.setdefault(fault.store, []).append(fault.reason)
        return {store: "; ".join(told) for store, told in reasons.items()}

    def may_claim(self) -> bool:
        """Whether the leases that the broker shows now are all that anybody may still act under."""
        now, link = self._clock.elapsed(), self._links()
        if link != self._newest_link:
            self._newest_link, self._newest_link_at = link, now
        is_looked_at = self._stores is None or link == self._looked_over
        return now >= self._claims_from and (is_looked_at or now >= self._newest_link_at + self._lapse_s())

    def withhold_claims(self) -> None:
        """Leases may have been forgotten: claim nothing before all of them have lapsed."""
        self._claims_from = self._clock.elapsed() + self._lapse_s()

    async def run(self) -> None:
        """Look for as long as the node runs."""
        delays = Backoff(AGAIN_S, EVERY_S)
        while self._stores is not None:
            if await self._look(self._stores):
                delays.reset()
                await self._until_due()
            else:
                pause_s = delays.next_s()
                await self._clock.sleep(pause_s if self._links() == self._looked_over else min(pause_s, EAGER_S))

    async def _until_due(self) -> None:
        """Not long where something is missing: what is made anew is seen to at once."""
        is_missing = any(fault.kind == "missing" for fault in self._faults)
        due_at = self._clock.elapsed() + (AGAIN_S if is_missing else EVERY_S)
        was_linked = True
        while self._clock.elapsed() < due_at and self._links() == self._looked_over:
            if not was_linked and self._is_linked():
                return
            was_linked = self._is_linked()
            await self._clock.sleep(AGAIN_S)

    async def _look(self, stores: Stores) -> bool:
        links = self._links()
        try:
            found = await stores.faults()
        except Unavailable as error:
            _log.debug("stores_not_looked_at", error=str(error))
            return False
        if any(fault.kind == "reset" and fault.store in _OF_LEASES for fault in found):
            self.withhold_claims()
        self._looked_over = links
        self._faults = tuple(fault for fault in found if fault.kind != "reset")
        for fault in found:
            self._alarm(fault)
            if fault.kind == "reset":
                await self._heed(fault)
        self._alarmed_at = {fault: at for fault, at in self._alarmed_at.items() if fault in found}
        return True

    async def _heed(self, fault: StoreFault) -> None:
        try:
            await self._on_reset(fault.store)
        except CrewletError as error:
            _log.error("store_reset_not_heeded", store=fault.store, error=str(error))

    def _alarm(self, fault: StoreFault) -> None:
        now = self._clock.elapsed()
        alarmed_at = self._alarmed_at.get(fault)
        if alarmed_at is None or now - alarmed_at >= ALARM_EVERY_S:
            self._alarmed_at[fault] = now
            _log.error("store_damaged", store=fault.store, kind=fault.kind, reason=fault.reason)
