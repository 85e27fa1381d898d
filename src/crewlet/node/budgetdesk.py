"""Seeing, setting and resetting budgets from outside. Every node answers alike: they are the fleet's."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from crewlet.company.model import Company
from crewlet.mail.outbox import UnknownSeat
from crewlet.node.turnstatus import BudgetSnapshot, WindowSnapshot
from crewlet.turns.budget import WINDOWS, Caps
from crewlet.turns.budgets import COMPANY, Budgets, Standing

_SIDE_BY_SIDE = 32


@dataclass(frozen=True, slots=True)
class BudgetDesk:
    """The verbs. A seat is named by its handle, the company by None."""

    budgets: Budgets
    company: Callable[[], Company]

    async def list(self) -> tuple[BudgetSnapshot, ...]:
        """The company, and every seat that has spent something or has a cap.

        Raises:
            Unavailable: the counters cannot be read.
        """
        gate = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def one(seat: str | None) -> BudgetSnapshot:
            async with gate:
                return await self.show(seat)

        company, *seats = await asyncio.gather(one(None), *(one(seat.handle) for seat in self.company().seats))
        return (company, *(seat for seat in seats if _says_something(seat)))

    async def show(self, seat: str | None) -> BudgetSnapshot:
        """Where one spender stands.

        Raises:
            UnknownSeat: the company has no such seat.
            Unavailable: the counters cannot be read.
        """
        return _snapshot(seat, await self.budgets.standing(self._spender(seat)))

    async def set(self, seat: str | None, caps: Caps | None) -> BudgetSnapshot:
        """Put caps in place of the document's, or with None go back to those. What waits for it goes on at once.

        Raises:
            UnknownSeat: the company has no such seat.
            Unavailable: nobody said whether it is done; a repeat is safe.
        """
        await self.budgets.set_caps(self._spender(seat), caps)
        return await self.show(seat)

    async def reset(self, seat: str | None) -> BudgetSnapshot:
        """Begin every window of a spender at nothing. What waits for it goes on at once.

        Raises:
            UnknownSeat: the company has no such seat.
            Unavailable: nobody said whether it is done; a repeat is safe.
        """
        await self.budgets.reset(self._spender(seat))
        return await self.show(seat)

    def _spender(self, seat: str | None) -> str:
        company = self.company()
        if seat is not None and company.seat(seat) is None:
            raise UnknownSeat(seat, company)
        return COMPANY if seat is None else seat


def _snapshot(seat: str | None, standing: Standing) -> BudgetSnapshot:
    windows = {
        window: WindowSnapshot(standing.spent[window], standing.caps.of(window), standing.ends[window])
        for window in WINDOWS
    }
    is_spent = any(each.cap is not None and each.spent >= each.cap for each in windows.values())
    return BudgetSnapshot(seat, standing.is_set, is_spent, windows)


def _says_something(budget: BudgetSnapshot) -> bool:
    return budget.is_set or any(each.spent or each.cap is not None for each in budget.windows.values())
