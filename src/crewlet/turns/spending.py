"""What a turn asks before it spends, and tells when it has spent."""

from typing import Protocol

from crewlet.turns.budget import Over


class BudgetSpent(Exception):
    """A cap is reached: the turn may spend nothing more. Its mail waits until the window ends, or the cap is raised.

    Attributes:
        over: which cap.
    """

    def __init__(self, over: Over) -> None:
        super().__init__(str(over))
        self.over = over


class Spending(Protocol):
    """The budgets as turns meet them."""

    async def screen(self, handle: str) -> Over | None:
        """The cap that keeps a seat's mail waiting. None when there is none, or when nobody knows: an unreadable
        counter parks nothing."""
        ...

    async def admit(self, handle: str) -> None:
        """Pass when the seat may spend.

        Raises:
            BudgetSpent: a cap is reached.
            Unavailable: nobody knows; nothing may be spent.
        """
        ...

    async def charge(self, handle: str, tokens: int) -> None:
        """Count what the seat has spent.

        Raises:
            Unavailable: it may or may not be counted; nothing more may be spent before it is known.
        """
        ...


class NoBudgets:
    """For a process that counts nothing."""

    async def screen(self, handle: str) -> Over | None:
        """There is no cap."""
        return None

    async def admit(self, handle: str) -> None:
        """Pass."""

    async def charge(self, handle: str, tokens: int) -> None:
        """Count nothing."""
