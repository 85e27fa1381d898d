"""The record of what happened, for whoever watches the company: `crewlet.events.{type}`.

Nothing works by an event and nothing waits for one: what cannot be published is logged and let go. So an event may also
be told of a turn whose tenure has ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import UTC
from typing import Any, Final

import msgspec
import structlog

from crewlet.kit.supervise import Tasks
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.mail import Mail

MOST_WAITING: Final = 1000
"""So many wait for a broker that does not answer; what happens beyond that is in the log alone."""

_LAST_S: Final = 1.0
"""How long a node that stops waits for its last events."""

_log = structlog.get_logger()

Tell = Callable[[str, Mapping[str, Any]], None]
"""Takes the type of an event and what it is about; returns at once."""


def tell_nobody(event_type: str, about: Mapping[str, Any]) -> None:
    """Where nothing is published."""
    del event_type, about


class Events:
    """Publishes what one node tells, one after the other in that order, beside everything else.

    Args:
        node_id: stamped on each.
    """

    def __init__(self, mail: Mail, clock: Clock, entropy: Entropy, node_id: str) -> None:
        self._mail = mail
        self._clock = clock
        self._entropy = entropy
        self._node_id = node_id
        self._waiting: deque[Envelope] = deque()
        self._tasks = Tasks("events")
        # Whoever tells the first event of several has names in its logs that are not those of the next.
        self._context = copy_context()
        self._publishing: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_full = False

    def tell(self, event_type: str, about: Mapping[str, Any]) -> None:
        """Have an event published. Returns at once; after `stop` it does nothing."""
        if self._is_stopped:
            return
        if len(self._waiting) >= MOST_WAITING:
            if not self._is_full:
                _log.warning("events_not_published", type=event_type, error=f"{MOST_WAITING} wait for the broker")
            self._is_full = True
            return
        self._is_full = False
        at = self._clock.now().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event_id = self._entropy.uuid()
        self._waiting.append(
            Envelope(id=event_id, type=event_type, timestamp=at, source="node", payload=dict(about), node=self._node_id)
        )
        if self._publishing is None or self._publishing.done():
            self._publishing = self._context.run(self._tasks.start, self._publish(), "publishing")

    async def stop(self) -> None:
        """Publish what waits, for a second at most, and nothing more from then on. Again: nothing happens."""
        self._is_stopped = True
        if self._publishing is not None and not self._publishing.done():
            timer = self._tasks.start(_sleep(self._clock), "last events")
            await asyncio.wait([self._publishing, timer], return_when=asyncio.FIRST_COMPLETED)
            if self._waiting:
                _log.warning("events_not_published", count=len(self._waiting), error="this node stops")
        await self._tasks.stop()

    async def _publish(self) -> None:
        while self._waiting:
            event = self._waiting[0]
            try:
                await self._mail.publish(topics.event(event.type), msgspec.json.encode(event), message_id=event.id)
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is told here, and the next event goes
                _log.warning("event_not_published", type=event.type, error=str(error) or repr(error))
            finally:
                self._waiting.popleft()


async def _sleep(clock: Clock) -> None:
    await clock.sleep(_LAST_S)
