"""The company in memory: the real seats, mail, turns and node, and faults that a test plants."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.errors import Misuse
from crewlet.ports.tools import ToolAnswer
from crewlet.seats.fence import SeatFence
from crewlet.testing import AsyncInMemoryCompany, Call, InMemoryCompany, NotIdle, Refuse, Say, Tool

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

pytestmark = pytest.mark.usefixtures("warnings_only")

Shop = Callable[..., InMemoryCompany]


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    """Makes the company, with this source as the module of the seat `till`."""

    def make(source: str, **options: Any) -> InMemoryCompany:
        (tmp_path / "till.py").write_text(source)
        (tmp_path / "company.yaml").write_text(SEATS)
        made = InMemoryCompany(tmp_path / "company.yaml", **options)
        request.addfinalizer(made.close)
        return made

    return make


def _bank(company: InMemoryCompany) -> list[int]:
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


# Running


@pytest.mark.parametrize("source", [CHARGES, CHARGES_PLAINLY])
def test_a_function_runs_with_its_tools_async_and_plain(shop: Shop, source: str) -> None:
    company = shop(source)
    charged = _bank(company)
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
    _bank(company)
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
    _bank(company)
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
    _bank(company)
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
    _bank(company)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "dead_lettered")
    assert "function_raised: ValueError: no change (till.py:2)" in mail.detail
    assert len(mail.runs) == 25


def test_a_module_that_does_not_load_is_named_when_the_time_is_up(shop: Shop) -> None:
    company = shop("import nothing_of_that_name")
    _bank(company)
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
    _bank(company)
    mail = company.send("till", "")
    company.run_until_idle()
    company.advance(60)
    company.assert_outcome(mail, "delivered")
    assert company.mail_to("desk") == []


# Crashes


@pytest.mark.parametrize("source", [CHARGES, CHARGES_PLAINLY])
def test_a_repeated_effect_is_found_with_the_seats_history(shop: Shop, source: str) -> None:
    company = shop(source)
    charged = _bank(company)
    company.crash_before_ack("till")
    mail = company.send("till", "7")
    company.run_until_idle()
    assert charged == [7, 7]
    with pytest.raises(AssertionError) as failure:
        company.assert_ran_once(mail)
    text = str(failure.value)
    assert "bank__charge was called 2 times with {'amount': 7}, and does not tell a repeat by its key" in text
    assert "the node dies: the turn had ended, and nothing of that was recorded" in text
    assert "holds the seat (epoch 2)" in text


def test_a_tool_that_looks_at_its_key_makes_the_same_function_sound(shop: Shop) -> None:
    company = shop(CHARGES)
    bank = KeyedBank(company)
    company.crash_before_ack("till")
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=bank.charged.values())
    assert [run.outcome for run in mail.runs] == ["", "delivered"]
    assert [run.epoch for run in mail.runs] == [1, 2]


def test_an_effect_that_the_tests_own_fake_saw_twice_is_found(shop: Shop) -> None:
    company = shop("def pay(work): ...\ndef run(turn):\n    pay(turn.work_key)\n    return 'paid'")
    _bank(company)
    paid: list[str] = []
    company.replace("till.pay", paid.append)
    company.crash_before_ack("till")
    mail = company.send("till", "7")
    company.run_until_idle()
    with pytest.raises(AssertionError, match="took place 2 times"):
        company.assert_ran_once(mail, effects=paid)
    company.assert_ran_once(mail, effects=set(paid))


def test_work_that_is_recorded_before_the_crash_is_not_done_again(shop: Shop) -> None:
    company = shop(CHARGES)
    charged = _bank(company)
    company.crash_before_ack("till", is_recorded=True)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=charged)
    assert len(mail.runs) == 1
    assert "the node dies: the turn was recorded, and its mail not acked" in company.history("till")


def test_mail_of_a_re_run_is_received_once_and_mail_that_differs_is_found(shop: Shop) -> None:
    company = shop("def run(turn):\n    turn.send('desk', 'hello')\n    return 'sent'")
    _bank(company)
    company.crash_before_ack("till")
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail)
    assert [each.body for each in company.mail_to("desk")] == ["hello"]

    unsound = shop(
        "import os\ndef run(turn):\n    if not os.path.exists('ran'):\n        open('ran', 'w').close()\n"
        "        turn.send('desk', 'first')\n    turn.send('desk', 'hello')\n    return 'sent'"
    )
    _bank(unsound)
    unsound.crash_before_ack("till")
    mail = unsound.send("till", "7")
    unsound.run_until_idle()
    bodies = [each.body for each in unsound.mail_to("desk")]
    assert bodies == ["first", "hello"], "the second run's only mail has the id of the first run's first"
    with pytest.raises(AssertionError, match="desk got the mail 'hello' from a run that was cut short"):
        unsound.assert_ran_once(mail)


def test_a_crash_at_a_step_leaves_what_comes_after_it_undone_until_the_next_run(shop: Shop) -> None:
    company = shop("def run(turn):\n    turn.send('desk', 'one')\n    turn.send('desk', 'two')\n    return 'sent'")
    _bank(company)
    company.crash_at("till", send=2)
    mail = company.send("till", "7")
    company.run_until(lambda: len(company.mail_to("desk")) == 1)
    assert not mail.outcome
    company.run_until_idle()
    company.assert_ran_once(mail)
    assert [each.body for each in company.mail_to("desk")] == ["one", "two"]


def test_not_even_a_finally_block_runs_in_a_node_that_dies(shop: Shop) -> None:
    source = """
done = None
async def run(turn):
    try:
        await turn.send("desk", "x")
    finally:
        note(turn.term.epoch)
    return "sent"
def note(epoch): ...
"""
    for each in (source, source.replace("async ", "").replace("await ", "")):
        company = shop(each)
        _bank(company)
        noted: list[int] = []
        company.replace("till.note", noted.append)
        company.crash_at("till", send=1)
        company.send("till", "7")
        company.run_until_idle()
        assert noted == [2]
        company.close()


def test_another_node_takes_over_and_an_assertion_tells_that_a_planted_fault_never_came(shop: Shop) -> None:
    company = shop(CHARGES)
    _bank(company)
    company.add_node("n2")
    company.run_until(lambda: company.holder("till"))
    holder = company.holder("till")
    assert holder is not None
    company.crash(holder, restarts=False)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail)
    assert company.holder("till") not in (None, holder)
    company.crash_at("till", call=9)
    with pytest.raises(AssertionError, match="till never came to call 9"):
        company.assert_ran_once(mail)


def test_a_restart_hands_the_seat_back_and_takes_it_again(shop: Shop) -> None:
    company = shop(CHARGES)
    charged = _bank(company)
    company.send("till", "7")
    company.run_until_idle()
    company.restart()
    mail = company.send("till", "8")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=charged)
    assert [run.epoch for run in company.runs("till")] == [1, 2]
    assert "gives the seat back (epoch 1)" in company.history("till")


# The fence


@pytest.mark.proves("HO-07")
def test_an_agent_whose_lease_is_lost_while_its_model_answers_calls_no_tool(shop: Shop) -> None:
    company = shop(IDLE)
    charged = _bank(company)
    company.script(
        "agent", [Say("", [Call("note", {"text": "charging"})]), Say("", [Call("bank__charge", {"amount": 7})]), DONE]
    )
    company.lose_lease_at("agent", round=2)
    mail = company.send("agent", "7")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=charged)
    first, second = mail.runs
    assert (first.outcome, [call.tool for call in first.calls]) == ("fenced", ["note"])
    assert (second.outcome, second.node, second.epoch) == ("delivered", "n2", 2)


@pytest.mark.parametrize("source", [CHARGES, CHARGES_PLAINLY])
def test_a_function_whose_lease_is_lost_before_a_call_does_not_make_it(shop: Shop, source: str) -> None:
    company = shop(source)
    charged = _bank(company)
    company.lose_lease_at("till", call=1)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=charged)
    assert [(run.outcome, len(run.calls)) for run in mail.runs] == [("fenced", 0), ("delivered", 1)]
    assert company.holder("till") == "n2"


def test_without_the_fence_the_call_would_have_been_made(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the two above would see if the fence let things through."""

    def let_through(_: SeatFence) -> None:
        return

    monkeypatch.setattr(SeatFence, "check", let_through)
    company = shop(CHARGES)
    charged = _bank(company)
    company.lose_lease_at("till", call=1)
    mail = company.send("till", "7")
    company.run_until_idle()
    assert [(run.node, run.epoch, len(run.calls)) for run in mail.runs] == [("n1", 1, 1), ("n2", 2, 1)]
    with pytest.raises(AssertionError, match="once"):
        company.assert_ran_once(mail, effects=charged)
    assert charged == [7, 7]


# Models


def test_a_scripted_model_goes_through_its_rounds_and_what_it_spends_is_counted(shop: Shop) -> None:
    company = shop(IDLE)
    charged = _bank(company)
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
    _bank(company)
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
    charged = _bank(company)
    company.script("agent", TestModel(call_tools=["bank__charge"], custom_output_args=DONE.calls[0].arguments))
    mail = company.send("agent", "7")
    company.run_until_idle()
    company.assert_outcome(mail, "delivered")
    assert len(charged) == 1


# People, budgets, mail


def test_a_paused_seat_holds_its_mail_and_a_pause_can_stop_a_turn(shop: Shop) -> None:
    company = shop("import asyncio\nasync def run(turn):\n    await asyncio.sleep(600)\n    return 'done'")
    _bank(company)
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
    _bank(company)
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
    _bank(other)
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
    _bank(company)
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
