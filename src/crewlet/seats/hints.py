"""Which node would like which resource back: the hints of the counters' bucket, from a view of it.

A sweep asks every few seconds; without a view each time would read every counter there is.
"""

import structlog

from crewlet.ports.cells import Cells, Entry
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.seats.records import decode_epoch
from crewlet.seats.view import View

_log = structlog.get_logger()


class _Preferences:
    """Keys by the node that they prefer."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._keys: dict[str, set[str]] = {}

    def put(self, entry: Entry) -> None:
        self.remove(entry.key)
        try:
            node_id = decode_epoch(entry).preferred
        except Unavailable:
            # Its resource cannot be claimed; the others can, and keep their hints.
            _log.error("lease_counter_unreadable", key=entry.key, revision=entry.revision)
            return
        if node_id is not None:
            self._nodes[entry.key] = node_id
            self._keys.setdefault(node_id, set()).add(entry.key)

    def remove(self, key: str) -> None:
        node_id = self._nodes.pop(key, None)
        if node_id is not None:
            keys = self._keys[node_id]
            keys.discard(key)
            if not keys:
                del self._keys[node_id]

    def of(self, node_id: str) -> frozenset[str]:
        return frozenset(self._keys.get(node_id, ()))


class Hints:
    """The hints of one bucket of counters.

    Args:
        epochs: the bucket.
        clock: this machine's.
    """

    def __init__(self, epochs: Cells, clock: Clock) -> None:
        self._epochs = epochs
        self._view = View(epochs, _Preferences, clock, "hints_view")

    async def of(self, node_id: str, prefix: str) -> frozenset[str]:
        """The keys under a prefix that prefer a node, as of this call.

        Raises:
            Unavailable: nobody answered.
        """
        rows = await self._view.rows(await self._epochs.mark())
        return frozenset(key for key in rows.of(node_id) if key.startswith(prefix))

    async def stop(self) -> None:
        """End the view."""
        await self._view.stop()
