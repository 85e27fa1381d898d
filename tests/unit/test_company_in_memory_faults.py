"""The company in memory where nodes die and leases are lost, as a test plants it."""

from pathlib import Path

import pytest
from shop_rig import CHARGES, CHARGES_PLAINLY, DONE, IDLE, KeyedBank, Shop, bank_of, shop_in

from crewlet.seats.fence import SeatFence
from crewlet.testing import Call, Say

pytestmark = pytest.mark.usefixtures("warnings_only")


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    return shop_in(tmp_path, request)


# Crashes


@pytest.mark.parametrize("source", [CHARGES, CHARGES_PLAINLY])
def test_a_repeated_effect_is_found_with_the_seats_history(shop: Shop, source: str) -> None:
    company = shop(source)
    charged = bank_of(company)
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
    bank_of(company)
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
    charged = bank_of(company)
    company.crash_before_ack("till", is_recorded=True)
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=charged)
    assert len(mail.runs) == 1
    assert "the node dies: the turn was recorded, and its mail not acked" in company.history("till")


def test_mail_of_a_re_run_is_received_once_and_mail_that_differs_is_found(shop: Shop) -> None:
    company = shop("def run(turn):\n    turn.send('desk', 'hello')\n    return 'sent'")
    bank_of(company)
    company.crash_before_ack("till")
    mail = company.send("till", "7")
    company.run_until_idle()
    company.assert_ran_once(mail)
    assert [each.body for each in company.mail_to("desk")] == ["hello"]

    unsound = shop(
        "import os\ndef run(turn):\n    if not os.path.exists('ran'):\n        open('ran', 'w').close()\n"
        "        turn.send('desk', 'first')\n    turn.send('desk', 'hello')\n    return 'sent'"
    )
    bank_of(unsound)
    unsound.crash_before_ack("till")
    mail = unsound.send("till", "7")
    unsound.run_until_idle()
    bodies = [each.body for each in unsound.mail_to("desk")]
    assert bodies == ["first", "hello"], "the second run's only mail has the id of the first run's first"
    with pytest.raises(AssertionError, match="desk got the mail 'hello' from a run that was cut short"):
        unsound.assert_ran_once(mail)


def test_a_crash_at_a_step_leaves_what_comes_after_it_undone_until_the_next_run(shop: Shop) -> None:
    company = shop("def run(turn):\n    turn.send('desk', 'one')\n    turn.send('desk', 'two')\n    return 'sent'")
    bank_of(company)
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
        bank_of(company)
        noted: list[int] = []
        company.replace("till.note", noted.append)
        company.crash_at("till", send=1)
        company.send("till", "7")
        company.run_until_idle()
        assert noted == [2]
        company.close()


def test_another_node_takes_over_and_an_assertion_tells_that_a_planted_fault_never_came(shop: Shop) -> None:
    company = shop(CHARGES)
    bank_of(company)
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
    charged = bank_of(company)
    company.send("till", "7")
    company.run_until_idle()
    company.restart()
    mail = company.send("till", "8")
    company.run_until_idle()
    company.assert_ran_once(mail, effects=charged)
    assert [run.epoch for run in company.runs("till")] == [1, 2]
    assert "gives the seat back (epoch 1)" in company.history("till")


# The fence


@pytest.mark.proves("FE-06")
def test_an_agent_whose_lease_is_lost_while_its_model_answers_calls_no_tool(shop: Shop) -> None:
    company = shop(IDLE)
    charged = bank_of(company)
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
    charged = bank_of(company)
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
    charged = bank_of(company)
    company.lose_lease_at("till", call=1)
    mail = company.send("till", "7")
    company.run_until_idle()
    assert [(run.node, run.epoch, len(run.calls)) for run in mail.runs] == [("n1", 1, 1), ("n2", 2, 1)]
    with pytest.raises(AssertionError, match="once"):
        company.assert_ran_once(mail, effects=charged)
    assert charged == [7, 7]
