"""Budgets and the clock of the company in its document."""

import pytest

from crewlet.company.budgets import Budget
from crewlet.company.document import parse_company
from crewlet.kit.refusal import ConfigRefused


def test_caps_and_the_zone_are_read() -> None:
    company = parse_company(
        """
name: Desk
timezone: Europe/Berlin
budget: {month: 1000}
roles:
  - handle: a
    budget: {day: 0, week: 50}
  - handle: b
""",
        "company.yaml",
    )
    assert company.timezone == "Europe/Berlin"
    assert company.budget == Budget(month=1000)
    assert [seat.budget for seat in company.seats] == [Budget(day=0, week=50), Budget()]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("timezone: Berlin\nroles: []", "company.yaml:2: timezone"),
        ("timezone: ../../etc/passwd\nroles: []", "company.yaml:2: timezone"),
        ("budget: {}\nroles: []", "company.yaml:2: budget"),
        ("budget: {day: -1}\nroles: []", "company.yaml:2: budget.day"),
        ("budget: {year: 1}\nroles: []", "company.yaml:2: budget.year"),
        ("roles:\n  - handle: a\n    kind: human\n    budget: {day: 1}", "company.yaml:5: roles[0].budget"),
    ],
)
def test_what_is_no_budget_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        parse_company(f"name: Desk\n{text}\n", "company.yaml")
    assert refused.value.where == where
