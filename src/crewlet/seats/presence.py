"""A node's own lease, by which its peers count it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from crewlet.ports.errors import Unavailable
from crewlet.seats.context import HostContext
from crewlet.seats.lease import Granted, node_resource
from crewlet.seats.noderow import NodeRow, meta_from_row

_log = structlog.get_logger()

_RETRY_S = 1.0
_TELL_EVERY_S = 300.0
"""How often it is said that another process has this node's id."""

StatusSource = Callable[[], Awaitable[Mapping[str, Any]]]


class Presence:
    """Claims, renews and gives up `node:{id}`.

    Args:
        row: this node as its peers should count it now.
        status: facts about the node that ride on each heartbeat's renewal, under `status`. One that takes longer than a
            quarter of the beat, or raises, is left out.
    """

    def __init__(self, context: HostContext, row: Callable[[], NodeRow], status: StatusSource | None = None) -> None:
        self._status_source = status
        self._status: Mapping[str, Any] | None = None
        self._context = context
        self._row = row
        self._resource = node_resource(context.config.node_id)
        self._lock = asyncio.Lock()
        self._epoch: int | None = None
        self._sent_at = -math.inf
        self._is_given_up = False
        self._is_gone = False
        self._advertised: Mapping[str, Any] | None = None
        self._trouble = ""
        self._rival = ""
        self._rival_since = self._told_at = -math.inf

    @property
    def rival(self) -> str | None:
        """The live process that has this node's id, while it keeps this one out; one that died is it for a TTL."""
        return self._rival or None

    @property
    def trouble(self) -> str | None:
        """Why the last renewal or claim was not answered; None where it was."""
        return self._trouble or None

    @property
    def is_held(self) -> bool:
        """Whether peers provably still count this node: within a TTL of the last answered renewal's sending."""
        if self._epoch is None or self._is_given_up:
            return False
        return self._context.clock.elapsed() < self._sent_at + self._context.ttl_s

    @property
    def is_gone(self) -> bool:
        """Whether it was given up, and the store has said so: no peer that looks now counts this node."""
        return self._is_gone

    def meta(self) -> dict[str, Any]:
        """What the presence row says at this moment."""
        meta = {**meta_from_row(self._row()), "draining": self._context.is_draining}
        return meta if self._status is None else {**meta, "status": dict(self._status)}

    async def renew(self) -> None:
        """Renew it, or claim it where it is not held. A node that gave its presence up stays out.

        Never raises for the store: not answered, it is tried again at the next heartbeat.
        """
        async with self._lock:
            await self._renew_or_tell()

    async def keep(self, until: float) -> None:
        """Renew it, again every second while it is not held, till that instant.

        A node that restarts finds the presence of its former incarnation in its way. Between that one's lapse and its
        own claim the fleet counts one node less, and moves seats for it.
        """
        clock = self._context.clock
        self._status = await self._read_status()
        await self.renew()
        while not self.is_held and not self._is_given_up and clock.elapsed() + _RETRY_S < until:
            await clock.sleep(_RETRY_S)
            await self.renew()

    async def advertise(self) -> None:
        """Renew it at once if what it would say has changed since it was last said.

        Never raises for the store: not answered, the next heartbeat says it.
        """
        if self._is_given_up:
            return  # and whatever renewal is still waited for, nobody waits for it here
        async with self._lock:
            if self._epoch is not None and not self._is_given_up and self.meta() != self._advertised:
                await self._renew_or_tell()

    async def give_up(self) -> None:
        """Release it, and never put it back until `restore`.

        Raises:
            Unavailable: nobody answered; it lapses by itself.
        """
        self._is_given_up = True
        async with self._lock:
            epoch, self._epoch = self._epoch, None
            if epoch is not None:
                await self._context.leases.release(self._resource, self._context.config.owner, epoch)
                self._is_gone = True

    def restore(self) -> None:
        """Undo `give_up`: the next renewal claims it again."""
        self._is_given_up = self._is_gone = False

    async def _read_status(self) -> Mapping[str, Any] | None:
        if self._status_source is None:
            return None
        context = self._context
        try:
            reading = _as_coroutine(self._status_source())
            return await context.tasks.within(reading, context.period_s / 4, context.clock.sleep, "node status")
        except Exception as error:  # noqa: BLE001 -- presence goes on whatever the node's code does
            _log.warning("node_status_not_published", error=str(error) or type(error).__name__)
            return None

    async def _renew_or_tell(self) -> None:
        try:
            await self._renew()
            self._trouble = ""
        except Unavailable as error:
            self._trouble = str(error)
            _log.warning("node_presence_unavailable", node=self._context.config.node_id, error=str(error))

    async def _renew(self) -> None:
        context = self._context
        if self._is_given_up:
            return
        sent_at, meta = context.clock.elapsed(), self.meta()
        if self._epoch is not None:
            if await context.leases.renew(self._resource, context.config.owner, self._epoch, meta=meta):
                self._sent_at, self._advertised, self._rival = sent_at, meta, ""
                return
            self._epoch = None
            sent_at = context.clock.elapsed()
        if self._is_given_up:
            return
        claim = await context.leases.claim(self._resource, context.config.owner, meta=meta)
        if isinstance(claim, Granted):
            self._epoch, self._sent_at, self._advertised, self._rival = claim.lease.epoch, sent_at, meta, ""
        else:
            self._tell_refused(claim.holder or "unknown")

    def _tell_refused(self, holder: str) -> None:
        """A predecessor under this id lets go within a TTL; a twin does not, and this node stays idle beside it."""
        context = self._context
        now, node_id = context.clock.elapsed(), context.config.node_id
        if holder != self._rival:
            self._rival, self._rival_since, self._told_at = holder, now, now
            sentence = (
                f"{holder} still has the presence of node {node_id}: a former run of it, which lapses within "
                f"{context.ttl_s:g} s, or another live process under the same id"
            )
            _log.warning("node_presence_refused", node=node_id, holder=holder, reason=sentence)
        elif now - self._rival_since > context.ttl_s and (
            self._told_at == self._rival_since or now - self._told_at >= _TELL_EVERY_S
        ):
            self._told_at = now
            _log.error("node_id_taken", node=node_id, holder=holder, reason=id_taken(node_id, holder))


def id_taken(node_id: str, holder: str) -> str:
    """What is wrong where two live processes have one node id, and what to do."""
    return (
        f"another live process ({holder}) has the node id {node_id!r}, so that this one takes no seats: stop one of "
        "the two, or give this one another id (`node.id` in its settings)"
    )


async def _as_coroutine(status: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return await status
