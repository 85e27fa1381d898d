"""A company in memory: a till and an agent with a bank, and a desk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crewlet.testing import Call, InMemoryCompany, Say

SEATS = """
name: Shop
roles:
  - handle: till
    runner: {type: python, target: "till:run"}
    tools: {servers: {bank: {command: [nobody-starts-this]}}}
  - handle: desk
    runner: {type: script, steps: []}
  - handle: agent
    runner: {type: llm, model: "openai:gpt-5", instructions: "Charge what the mail says."}
    tools: {servers: {bank: {command: [nobody-starts-this]}}}
"""
IDLE = "def run(turn): ..."
DONE = Say(calls=[Call("submit_work", {"outcome": "delivered", "summary": "done", "evidence": ["the bank"]})])

Shop = Callable[..., InMemoryCompany]


def shop_in(tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    """What makes the company, with a source as the module of the seat `till`."""

    def make(source: str, **options: Any) -> InMemoryCompany:
        (tmp_path / "till.py").write_text(source)
        (tmp_path / "company.yaml").write_text(SEATS)
        made = InMemoryCompany(tmp_path / "company.yaml", **options)
        request.addfinalizer(made.close)
        return made

    return make


def bank_of(company: InMemoryCompany) -> list[int]:
    """A tool that charges each time it is called, and what it charged."""
    charged: list[int] = []

    def charge(amount: int) -> str:
        """Charge an amount."""
        charged.append(amount)
        return "charged"

    company.tool_server("bank", charge)
    return charged


class KeyedBank:
    """A tool that does the same work once."""

    def __init__(self, company: InMemoryCompany) -> None:
        self.charged: dict[str, int] = {}
        company.tool_server("bank", self.charge)

    def charge(self, amount: int, *, idempotency_key: str) -> str:
        """Charge an amount."""
        self.charged.setdefault(idempotency_key, amount)
        return "charged"


CHARGES = """
from crewlet.agent import Outcome

async def run(turn):
    for mail in turn.mail:
        answer = await turn.call("bank__charge", {"amount": int(mail.body)})
        if answer.is_error:
            return Outcome("failed", answer.text)
    return Outcome("delivered", "charged")
"""
CHARGES_PLAINLY = CHARGES.replace("async ", "").replace("await ", "")
