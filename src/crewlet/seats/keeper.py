"""The mark of a node that keeps its leases to itself, on the broker that it works with: nobody else runs seats there.

A node that keeps its own leases renews the mark, and looks at each renewal whether others share leases on this broker.
Nodes that share leases look for the mark before they take seats. Each writes what the other looks for, and then looks;
what slips through all the same, as after an outage, is found at the next renewal.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import BucketSpec, Cells, Entry, landed
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable

AGE_S: Final = 15.0
KEEPER_BUCKET: Final = BucketSpec("crewlet_keeper", max_age_s=AGE_S)
KEY: Final = "keeper"
ROUNDS: Final = 3

_LOOK_EVERY_S = 0.5
_LATENESS_S = 5.0
_WHERE = "coordination.type"
_REMEDY = "stop one of the two, or write embedded-kv for both"

_log = structlog.get_logger()


class Keeper(msgspec.Struct, frozen=True):
    """Who keeps its leases to itself, by its incarnation."""

    owner: str = ""


class KeeperMark:
    """This node's own mark. There is no other keeper: only the node beside an embedded broker may keep its own leases.

    Args:
        sharing: the owners of the leases that are shared on this broker and live now.
    """

    def __init__(self, cells: Cells, owner: str, clock: Clock, sharing: Callable[[], Awaitable[Sequence[str]]]) -> None:
        self._cells = cells
        self._value = msgspec.json.encode(Keeper(owner))
        self._clock = clock
        self._sharing = sharing

    async def write(self) -> None:
        """Write the mark, over that of a former run too.

        Raises:
            Unavailable: nobody answered.
        """
        for _ in range(ROUNDS):
            entry = await self._cells.read(KEY)
            if entry is None:
                writing = self._cells.create(KEY, self._value)
            else:
                writing = self._cells.replace(KEY, self._value, expect=entry.revision)
            if landed(await writing, "the mark's write is undecided"):
                return
        raise Unavailable("the mark changes under this node's hands")

    async def contested(self) -> ConfigRefused:
        """Renew the mark until other nodes run seats on this broker as well. Returns what a person is to be told."""
        while True:
            await self._clock.sleep(AGE_S / 3)
            try:
                await self.write()
                owners = await self._sharing()
            except Unavailable as error:
                _log.info("keeper_mark_not_renewed", reason=str(error))
                continue
            if owners:
                problem = f"{', '.join(owners)} came to hold leases of this company on this broker, beside the local"
                return ConfigRefused(f"{problem} ones of this node", where=_WHERE, remedy=_REMEDY)

    async def end(self) -> None:
        """Remove the mark. What cannot be removed ages out."""
        try:
            entry = await self._cells.read(KEY)
            if entry is not None and entry.value == self._value:
                landed(await self._cells.remove(KEY, expect=entry.revision), "the mark's removal is undecided")
        except Unavailable as error:
            _log.info("keeper_mark_left", reason=str(error), goes_within_s=AGE_S)


async def wait_until_nobody_keeps(cells: Cells, clock: Clock) -> None:
    """Wait until no node keeps leases to itself on this broker, as after its crash: for the mark's age and a little.

    Raises:
        ConfigRefused: one renews its mark, and so runs the seats.
        Unavailable: nobody answered.
    """
    until = clock.elapsed() + AGE_S + _LATENESS_S
    is_told = False
    while (entry := await cells.read(KEY)) is not None:
        owner = _owner(entry)
        if clock.elapsed() >= until:
            raise ConfigRefused(
                f"{owner} runs this company's seats on this broker with local leases, which no other node can see",
                where=_WHERE,
                remedy=_REMEDY,
            )
        if not is_told:
            _log.warning("keeper_awaited", owner=owner, at_most_s=AGE_S + _LATENESS_S)
        is_told = True
        await clock.sleep(_LOOK_EVERY_S)


def _owner(entry: Entry) -> str:
    """Whose mark it is; one that cannot be read is somebody's."""
    try:
        return decode(entry.value, Keeper).owner
    except msgspec.MsgspecError:
        return "a node of another build"
