"""Pausing seats from outside, by handle or by unit, with what that holds back."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from crewlet.company.model import Company
from crewlet.kit import wording
from crewlet.mail import topics
from crewlet.mail.outbox import UnknownSeat
from crewlet.mail.pauses import Changed, Pause, Pauses, Wish
from crewlet.node.status import PauseSnapshot, SeatPause
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.ports.mail import Mail

_SIDE_BY_SIDE = 32


class UnknownUnit(CrewletError):
    """The company has no unit of that name."""

    def __init__(self, unit: str, company: Company) -> None:
        units = ", ".join(company.units) or "none"
        super().__init__(f"the company has no unit {unit!r}; its units are: {units}")


class PauseLost(CrewletError):
    """The seat was paused, or its pause was changed, by somebody else, whose word stands."""


@dataclass(frozen=True, slots=True)
class Pausing:
    """The verbs. Every node answers alike: a pause is the fleet's, not a node's."""

    pauses: Pauses
    mail: Mail
    company: Callable[[], Company]
    entropy: Entropy

    async def pause(self, handle: str, wish: Wish, *, instead_of: str | None = None) -> SeatPause:
        """Pause one seat. A repeat under the same `wish.id` is the same pause.

        Args:
            instead_of: the id of the pause that this one is to replace.

        Raises:
            UnknownSeat: the company has no such seat.
            PauseLost: it is paused already; or not by the pause that was to be replaced.
            IdReused: the pause of this id says something else.
            Misuse: the wished end has passed.
            Unavailable: nobody said whether it is done.
        """
        company = self.company()
        if company.seat(handle) is None:
            raise UnknownSeat(handle, company)
        changed = await self.pauses.pause([handle], self._with_id(wish), instead_of=instead_of)
        if handle in changed.lost:
            standing = changed.lost[handle]
            raise PauseLost(
                f"the seat {handle} is not paused" if standing is None else _already(handle, standing, instead_of)
            )
        return (await self._results(changed, [handle]))[0]

    async def resume(self, handle: str, *, by: str = "", expect: str | None = None) -> SeatPause:
        """End the pause of one seat, or only the one of this id. A seat that is not paused stays so.

        Raises:
            UnknownSeat: neither the company nor the pauses know such a seat.
            PauseLost: another pause has come meanwhile.
            Unavailable: nobody said whether it is done.
        """
        in_force = await self.pauses.in_force()
        company = self.company()
        if handle not in in_force and company.seat(handle) is None:
            raise UnknownSeat(handle, company)
        if handle not in in_force:
            return SeatPause(handle, is_changed=False)
        expected = expect if expect is not None else in_force[handle].id
        changed = await self.pauses.resume({handle: expected}, by=by)
        standing = changed.lost.get(handle)
        if standing is not None:
            raise PauseLost(f"the seat {handle} is under another pause meanwhile ({standing})")
        held = await self._held(handle)
        return SeatPause(handle, is_changed=handle in changed.done, messages_held=held)

    async def pause_unit(self, unit: str, wish: Wish) -> tuple[SeatPause, ...]:
        """Pause every seat of a unit and of those inside it, in one write. What is paused already stays as it is.

        Raises:
            UnknownUnit: the company has no such unit.
            IdReused, Misuse, Unavailable: as for one seat.
        """
        handles = self._handles(unit)
        changed = await self.pauses.pause(handles, self._with_id(wish))
        return await self._results(changed, handles)

    async def resume_unit(self, unit: str, *, by: str = "") -> tuple[SeatPause, ...]:
        """End the pauses of the seats of a unit and of those inside it, in one write, whoever paused them.

        Raises:
            UnknownUnit, Unavailable: as above.
        """
        handles = self._handles(unit)
        in_force = await self.pauses.in_force()
        changed = await self.pauses.resume({h: in_force[h].id for h in handles if h in in_force}, by=by)
        return await self._results(changed, handles)

    async def in_force(self) -> Mapping[str, PauseSnapshot]:
        """The paused seats, each with the number of messages that it holds back.

        Raises:
            Unavailable: the pauses cannot be read.
        """
        pauses = await self.pauses.in_force()
        gate = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def held(handle: str) -> int | None:
            async with gate:
                return await self._held(handle)

        counts = await asyncio.gather(*(held(handle) for handle in pauses))
        return {handle: _snapshot(pause, count) for (handle, pause), count in zip(pauses.items(), counts, strict=True)}

    def _handles(self, unit: str) -> list[str]:
        company = self.company()
        if unit not in company.units:
            raise UnknownUnit(unit, company)
        return [seat.handle for seat in company.seats_of(unit)]

    def _with_id(self, wish: Wish) -> Wish:
        if wish.id:
            return wish
        return Wish(self.entropy.uuid(), wish.by, wish.reason, wish.until, wish.for_s, wish.stop_running)

    async def _results(self, changed: Changed, handles: Collection[str]) -> tuple[SeatPause, ...]:
        counts = await asyncio.gather(*(self._held(handle) for handle in handles))
        return tuple(
            SeatPause(
                handle,
                is_changed=handle in changed.done,
                pause=_snapshot(pause, count) if (pause := changed.pauses.get(handle)) is not None else None,
                messages_held=count,
            )
            for handle, count in zip(handles, counts, strict=True)
        )

    async def _held(self, handle: str) -> int | None:
        """How many messages lie in an inbox; None where nobody says."""
        if not topics.is_handle(handle):
            return None
        try:
            backlog = await self.mail.waiting(topics.inbox(handle))
        except Unavailable:
            return None
        return backlog.waiting + backlog.in_hand if backlog is not None else 0


def _already(handle: str, standing: Pause, instead_of: str | None) -> str:
    since = wording.instant(standing.since)
    if instead_of is not None:
        return f"the seat {handle} is under another pause than the one to be changed: {standing}, since {since}"
    return f"the seat {handle} is {standing}, since {since}; resume it first, or change that pause"


def _snapshot(pause: Pause, held: int | None) -> PauseSnapshot:
    return PauseSnapshot(
        id=pause.id,
        since=pause.since,
        by=pause.by,
        reason=pause.reason,
        until=pause.until,
        stop_running=pause.stop_running,
        messages_held=held,
    )
