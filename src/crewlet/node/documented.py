"""What the document in force says of money and time, as the budgets ask for it."""

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from crewlet.company.model import Company
from crewlet.turns.budget import Caps
from crewlet.turns.budgets import COMPANY

_UNLIMITED = Caps()


def caps_of(company: Company, spender: str) -> Caps:
    """The caps of a seat, or of the company itself."""
    seat = company.seat(spender) if spender != COMPANY else None
    budget = company.budget if spender == COMPANY else seat.budget if seat is not None else None
    return Caps(budget.day, budget.week, budget.month) if budget is not None else _UNLIMITED


def zone_of(company: Company) -> tzinfo:
    """By whose clock its days begin."""
    return UTC if company.timezone == "UTC" else ZoneInfo(company.timezone)
