"""Is any seat or presence lease held at a lower protocol than ours? Answered from a watch, as exactly as a full read.

A judgement brings the view level with the bucket's last write, which the caller has read from the bucket's leader, and
then looks only at the lowest protocols it holds. It costs the same with ten leases as with ten thousand.
"""

from datetime import datetime, timedelta
from functools import lru_cache

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.ports.cells import Cells, Entry, Mark
from crewlet.ports.clock import Clock
from crewlet.seats.lease import NODE, SEAT
from crewlet.seats.records import OLDEST_PROTOCOL, lifetime_s, prefix_of
from crewlet.seats.view import IDLE_S, View

__all__ = ["IDLE_S", "ProtocolGate"]

_SHORT = 512
_COUNTED = (prefix_of(SEAT), prefix_of(NODE))

_log = structlog.get_logger()


class _Row(msgspec.Struct, frozen=True):
    """What the gate reads of a lease record."""

    released: bool = False
    ttl_s: float = 0.0
    protocol: int = OLDEST_PROTOCOL


@lru_cache(10_000)
def _short_row(value: bytes) -> _Row:
    # A seat's renewal writes the same bytes again.
    return decode(value, _Row)


class _Rows:
    """Leases by protocol, oldest write first."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        # When each was written, and for how long it lives then.
        self._lives: dict[int, dict[str, tuple[datetime, float]]] = {}
        self._protocols: dict[str, int] = {}

    def put(self, entry: Entry) -> None:
        key = entry.key
        self.remove(key)
        if not key.startswith(_COUNTED):
            return
        try:
            row = _short_row(entry.value) if len(entry.value) <= _SHORT else decode(entry.value, _Row)
        except msgspec.MsgspecError:
            # It keeps claims of its own resource out until it ages out; it must not keep every claim out.
            _log.error("lease_record_unreadable", key=entry.key, revision=entry.revision)
            return
        if row.released:
            return
        self._protocols[key] = row.protocol
        self._lives.setdefault(row.protocol, {})[key] = entry.written_at, lifetime_s(row.ttl_s, self._age_s)

    def remove(self, key: str) -> None:
        protocol = self._protocols.pop(key, None)
        if protocol is not None:
            self._lives[protocol].pop(key, None)

    def floor(self, store_now: datetime) -> int | None:
        """The lowest protocol of what is live. Lapsed rows are met once and dropped."""
        for protocol in sorted(self._lives):
            rows = self._lives[protocol]
            while rows:
                key, (written_at, lives_s) = next(iter(rows.items()))
                if written_at + timedelta(seconds=lives_s) > store_now:
                    return protocol
                del rows[key], self._protocols[key]
        return None


class ProtocolGate:
    """The lowest protocol at which a seat or a presence is leased.

    Args:
        cells: the bucket of the leases.
        age_s: its age.
        clock: this machine's.
    """

    def __init__(self, cells: Cells, age_s: float, clock: Clock) -> None:
        self._view = View(cells, lambda: _Rows(age_s), clock, "protocol_view")

    @property
    def is_watching(self) -> bool:
        """Whether the view is kept at present."""
        return self._view.is_watching

    def is_level(self, revision: int) -> bool:
        """Whether the view is kept and has shown every write up to a revision."""
        return self._view.is_level(revision)

    async def floor(self, mark: Mark) -> int | None:
        """The lowest protocol of the live seat and presence leases as of a mark; None when there is no such lease.

        Args:
            mark: of the lease bucket, asked for after the question arose.

        Raises:
            Unavailable: nobody answered.
        """
        return (await self._view.rows(mark)).floor(mark.store_now)

    async def stop(self) -> None:
        """End the view."""
        await self._view.stop()
