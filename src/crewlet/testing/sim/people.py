"""Whoever pauses seats and resumes them: by the product's own verbs, over a line that nothing goes wrong on."""

import asyncio
from collections.abc import Sequence
from contextvars import Context

from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.ports.errors import Unavailable
from crewlet.testing.sim.cells import SimCellStore, SimStore, Unwatched
from crewlet.testing.sim.dice import Dice, SimEntropy
from crewlet.testing.sim.loop import Process
from crewlet.testing.sim.wire import Broker, Line, Wire

_RETRY_S = 1.0


class People:
    """The people of one simulation."""

    def __init__(self, seed: int, store: SimStore, broker: Broker, world: Context) -> None:
        self._dice = Dice(seed, "people")
        self._entropy = SimEntropy(self._dice)
        wire = Wire(Process("people"), Line(), broker, self._dice, world)
        self._store = SimCellStore(store, wire, self._entropy.token, Unwatched())

    async def pause(self, handles: Sequence[str]) -> str:
        """Pause seats, perhaps for some time only, perhaps with what runs; says which pause. "": nobody answered."""
        dice, id = self._dice, self._entropy.uuid()
        for_s = dice.pick((None, 5.0, 30.0))
        try:
            await (await self._pauses()).pause(handles, Wish(id, for_s=for_s, stop_running=dice.chance(0.4)))
        except Unavailable:
            return ""
        return id

    async def resume(self, handles: Sequence[str], id: str) -> None:
        """End that pause, if it stands and somebody answers."""
        try:
            await (await self._pauses()).resume(dict.fromkeys(handles, id))
        except Unavailable:
            return

    async def resume_all(self) -> None:
        """End every pause, however long it takes."""
        while True:
            try:
                pauses = await self._pauses()
                in_force = await pauses.in_force()
                if in_force:
                    await pauses.resume({handle: pause.id for handle, pause in in_force.items()})
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _pauses(self) -> Pauses:
        return Pauses(await self._store.open(PAUSES_BUCKET))
