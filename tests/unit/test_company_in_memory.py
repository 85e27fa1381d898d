"""The company in memory: the real seats, mail, turns and node, as a test of a user runs them."""

from pathlib import Path
from typing import Any

import pytest
from shop_rig import CHARGES, CHARGES_PLAINLY, DONE, IDLE, Shop, bank_of, shop_in

from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.errors import Misuse
from crewlet.ports.tools import ToolAnswer
from crewlet.testing import AsyncInMemoryCompany, Call, NotIdle, Refuse, Say, Tool

pytestmark = pytest.mark.usefixtures("warnings_only")


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    return shop_in(tmp_path, request)


# Running


@pytest.mark.parametrize("source", [CHARGES, CHARGES_PLAINLY])
def test_a_function_runs_with_its_tools_async_and_plain(shop: Shop, source: str) -> None:
    company = shop(source)
    charged = bank_of(company)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "delivered")
    company.assert_ran_once(mail, effects=charged)
    assert mail.detail == "charged"
    (call,) = company.calls("till")
    assert (call.tool, call.arguments, call.is_effect, call.answer) == ("bank__charge", {"amount": 7}, True, "charged")


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def run(turn):\n    await asyncio.sleep(3000)\n    return 'slept'",
        "import time\ndef run(turn):\n    time.sleep(3000)\n    return 'slept'",
        "from time import sleep\ndef run(turn):\n    sleep(3000)\n    turn.term.check()\n    return 'slept'",
    ],
)
def test_sleep_takes_virtual_time(shop: Shop, source: str) -> None:
    company = shop(source)
    bank_of(company)
    mail = company.send("till", "")
    company.run_until_idle()
    company.assert_outcome(mail, "delivered")
    assert 3000 <= company.now_s < 3100


def test_a_function_has_the_environment_folder_and_modules_of_its_own_process(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("seen = []")
    company = shop(
        """
import os, shared
def run(turn):
    import late
    shared.seen.append(turn.turn_id)
    return f"{os.environ.get('SHOP')} {'PYTEST_CURRENT_TEST' in os.environ} {os.path.basename(os.getcwd())} " \\
        f"{len(shared.seen)} {late.word}"
""",
        env={"till": {"SHOP": "corner"}},
    )
    (tmp_path / "late.py").write_text("word = 'late'")
    bank_of(company)
    first, second = company.send("till", "a", conversation="1"), company.send("till", "b", conversation="2")
    company.run_until_idle()
    assert first.detail == f"corner False {tmp_path.name} 1 late"
    assert second.detail == f"corner False {tmp_path.name} 2 late"
    company.crash()
    third = company.send("till", "c")
    company.run_until_idle()
    assert third.detail.endswith(" 1 late"), "what a module remembers dies with its process"


def test_what_is_replaced_in_a_module_stays_replaced_in_the_next_worker(shop: Shop) -> None:
    company = shop(
        "def pay(amount): raise OSError('the real bank')\ndef run(turn): return str(pay(int(turn.mail[0].body)))"
    )
    bank_of(company)
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    company.replace("till.pay", pay)
    first = company.send("till", "7")
    company.run_until_idle()
    company.crash()
    second = company.send("till", "8")
    company.run_until_idle()
    assert (first.detail, second.detail, paid) == ("paid", "paid", [7, 8])


def test_a_function_that_keeps_raising_ends_in_the_dead_letters_with_its_error(shop: Shop) -> None:
    company = shop("def run(turn):\n    raise ValueError('no change')")
    bank_of(company)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "dead_lettered")
    assert "function_raised: ValueError: no change (till.py:2)" in mail.detail
    assert len(mail.runs) == 25


def test_a_module_that_does_not_load_is_named_when_the_time_is_up(shop: Shop) -> None:
    company = shop("import nothing_of_that_name")
    bank_of(company)
    company.send("till", "7")
    with pytest.raises(NotIdle, match=r"till: 1 mails unsettled.*nothing_of_that_name"):
        company.run_until_idle(within_s=30)


def test_tasks_that_a_function_leaves_behind_end_with_its_turn(shop: Shop) -> None:
    company = shop(
        """
import asyncio
async def later(turn):
    await asyncio.sleep(5)
    await turn.send("desk", "late")
async def run(turn):
    asyncio.create_task(later(turn))
    return "done"
"""
    )
    bank_of(company)
    mail = company.send("till", "")
    company.run_until_idle()
    company.advance(60)
    company.assert_outcome(mail, "delivered")
    assert company.mail_to("desk") == []


# Models


def test_a_scripted_model_goes_through_its_rounds_and_what_it_spends_is_counted(shop: Shop) -> None:
    company = shop(IDLE)
    charged = bank_of(company)
    company.script("agent", _counted([Say("", [Call("bank__charge", {"amount": 7})]), DONE]))
    mail = company.send("agent", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "delivered")
    assert charged == [7]
    assert mail.runs[0].tokens == company.spent("agent") == 30
    assert mail.runs[0].rounds == 2


def _counted(answers: list[Say]) -> Any:
    async def answer(messages: list[Any]) -> Say:
        return answers[sum(type(message).__name__ == "ModelResponse" for message in messages)]

    return answer


def test_a_provider_that_refuses_is_waited_for_in_virtual_time(shop: Shop) -> None:
    company = shop(IDLE)
    bank_of(company)
    refusals = iter([Refuse(429), Refuse(500), DONE])

    def answer(_: list[Any]) -> Any:
        return next(refusals)

    company.script("agent", answer)
    mail = company.send("agent", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "delivered")
    assert any("waiting for its provider" in line for line in mail.runs[0].progress)


def test_a_model_of_the_library_can_stand_in(shop: Shop) -> None:
    from pydantic_ai.models.test import TestModel

    company = shop(IDLE)
    charged = bank_of(company)
    company.script("agent", TestModel(call_tools=["bank__charge"], custom_output_args=DONE.calls[0].arguments))
    mail = company.send("agent", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "delivered")
    assert len(charged) == 1


# People, budgets, mail


def test_a_paused_seat_holds_its_mail_and_a_pause_can_stop_a_turn(shop: Shop) -> None:
    company = shop("import asyncio\nasync def run(turn):\n    await asyncio.sleep(600)\n    return 'done'")
    bank_of(company)
    company.pause("till", reason="lunch")
    held = company.send("till", "7")
    company.run_until_idle()
    assert (held.outcome, company.held_back("till")) == ("", "seat_paused")
    company.resume("till")
    company.advance(10)
    company.pause("till", stop_running=True)
    company.run_until_idle()
    company.assert_outcome(held, "stopped")


def test_a_seat_over_its_budget_keeps_its_mail_until_somebody_raises_it(shop: Shop) -> None:
    company = shop("def run(turn):\n    turn.usage('m', 60, 50)\n    return 'done'")
    bank_of(company)
    company.set_budget("till", day=100)
    first, second = company.send("till", "a", conversation="1"), company.send("till", "b", conversation="2")
    company.run_until_idle()
    assert (first.outcome, second.outcome) == ("delivered", "")
    assert company.held_back("till") == "budget_window"
    company.set_budget("till", day=1000)
    company.run_until_idle()
    company.assert_outcome(second, "delivered")
    assert company.spent("till") == 220


def test_a_tool_may_fail_answer_itself_or_only_read(shop: Shop) -> None:
    company = shop(
        """
async def run(turn):
    answers = [await turn.call(f"bank__{tool.name.split('__')[1]}", {}) for tool in turn.tools if "__" in tool.name]
    return " | ".join(answer.text for answer in answers)
"""
    )

    def broke() -> str:
        raise OSError("no money")

    async def balance() -> dict[str, int]:
        return {"euros": 7}

    def own() -> ToolAnswer:
        return ToolAnswer("as it is")

    company.tool_server("bank", broke, Tool(balance, is_read_only=True), own)
    mail = company.send("till", "7")
    company.run_until_idle()
    assert mail.detail == 'OSError: no money | {"euros": 7} | as it is'
    assert [call.is_effect for call in company.calls("till")] == [True, False, True]


# Misuse


def test_what_was_not_put_in_place_is_named_and_no_provider_is_asked(shop: Shop) -> None:
    company = shop(CHARGES)
    company.send("till", "7")
    with pytest.raises(Misuse, match="nothing stands in for the tool server 'bank' of till"):
        company.run_until_idle()
    other = shop(CHARGES)
    bank_of(other)
    other.send("agent", "7")
    with pytest.raises(Misuse, match="agent is an llm seat without a script"):
        other.run_until_idle()
    with pytest.raises(UnknownSeat):
        other.crash_before_ack("nobody")
    with pytest.raises(Misuse, match="say at which round"):
        other.lose_lease_at("till")
    with pytest.raises(Misuse, match="there is no node 'n9'; up are: n1"):
        other.crash("n9")
    with pytest.raises(Misuse, match="has begun"):
        other.replace("till.x", 1)


def test_a_company_is_left_without_threads_tasks_or_changed_surroundings(shop: Shop, tmp_path: Path) -> None:
    import os
    import sys
    import threading

    before = dict(os.environ), os.getcwd(), list(sys.path), threading.active_count()
    company = shop("def run(turn):\n    turn.send('desk', 'x')\n    return 'sent'")
    bank_of(company)
    company.crash_at("till", send=1, restarts=False)
    company.send("till", "7")
    company.run_until(lambda: "the node dies" in company.history("till"))
    company.close()
    company.close()
    assert (dict(os.environ), os.getcwd(), list(sys.path), threading.active_count()) == before
    assert "till" not in sys.modules
    with pytest.raises(Misuse, match="closed"):
        company.advance(1)


async def test_it_says_that_it_has_a_loop_of_its_own() -> None:
    company = AsyncInMemoryCompany("name: A\nroles:\n  - handle: a\n")
    with pytest.raises(Misuse, match="a loop of its own"):
        await company.advance(1)
    company.close()
