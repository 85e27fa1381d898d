"""What the document in force says of money and time, as the budgets ask for it."""

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from crewlet.company.model import Company
from crewlet.turns.budget import Caps
from crewlet.turns.budgets import COMPANY

_UNLIMITED = Caps()


def caps_of(company: Company, spender: str) -> Caps:
    """The caps of a seat, or of the company itself."""
    if spender == COMPANY:
        budget = company.budget
    else:
        budget = seat.budget if (seat := company.seat(spender)) is not None else None
    return _UNLIMITED if budget is None else Caps(budget.day, budget.week, budget.month)


def zone_of(company: Company) -> tzinfo:
    """By whose clock its days begin."""
    return UTC if company.timezone == "UTC" else ZoneInfo(company.timezone)
