"""A spent budget makes mail wait: it is no failure, and nothing is given up for it but what reached outside."""

from datetime import UTC, datetime

import pytest
from dispatch_desk import Desk, mails

from crewlet.mail.screening import BUDGET_WINDOW
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import RoundBegan
from crewlet.ports.mail import Ack, Defer, Nak
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.budget import Over
from crewlet.turns.spending import BudgetSpent
from crewlet.turns.turn import RoundUsage, Turn, TurnResult

OVER = Over("alice", "day", 100, 100, datetime(2030, 1, 2, tzinfo=UTC))


class Purse:
    """Lets so many rounds begin."""

    def __init__(self, rounds: int = 99, *, is_over: bool = False, is_away: bool = False) -> None:
        self.rounds = rounds
        self.is_over = is_over
        self.is_away = is_away
        self.charged: list[int] = []

    async def screen(self, handle: str) -> Over | None:
        return OVER if self.is_over else None

    async def admit(self, handle: str) -> None:
        if self.is_away:
            raise Unavailable("nobody knows")
        if self.rounds == 0:
            raise BudgetSpent(OVER)
        self.rounds -= 1

    async def charge(self, handle: str, tokens: int) -> None:
        self.charged.append(tokens)


async def _two_rounds(turn: Turn) -> TurnResult:
    for number in (1, 2):
        await turn.begin_round(number)
        await turn.usage(RoundUsage(number, "m", 10, 5))
    return TurnResult("delivered")


@in_virtual_time
async def test_mail_of_a_seat_over_its_cap_waits_before_the_ledger_is_read_and_runs_nothing() -> None:
    desk = await Desk(spending=Purse(is_over=True)).open()
    assert await desk.handle_mail(*mails("a")) == Defer(str(OVER))
    assert desk.dispatch.refusal is not None
    assert (desk.dispatch.refusal.name, desk.dispatch.refusal.is_parked) == (BUDGET_WINDOW, True)
    assert desk.ran == [] and desk.deferrals == ["alice"]


@in_virtual_time
async def test_every_answer_of_a_model_is_charged() -> None:
    purse = Purse()
    desk = await Desk(_two_rounds, spending=purse).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert purse.charged == [15, 15]


@in_virtual_time
async def test_a_turn_that_spends_the_last_of_it_has_its_mail_wait_and_not_fail() -> None:
    purse = Purse(rounds=1)
    desk = await Desk(_two_rounds, spending=purse).open()
    assert await desk.handle_mail(*mails("a")) == Defer(str(OVER))
    assert await desk.completion("a") is None
    assert [each.number for each in desk.history.kept if isinstance(each, RoundBegan)] == [1]
    assert "budget_exhausted" in desk.events()
    assert [(event_type, about["seat"]) for event_type, about in desk.published] == [("budget_exhausted", "alice")]
    purse.rounds = 2
    assert await desk.handle_mail(*mails("a")) == Ack()


@in_virtual_time
async def test_a_turn_whose_budget_ends_after_it_reached_outside_does_not_come_back() -> None:
    async def script(turn: Turn) -> TurnResult:
        turn.reach("a call")
        return await _two_rounds(turn)

    desk = await Desk(script, spending=Purse(rounds=1)).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "failed"


@in_virtual_time
async def test_a_counter_that_cannot_be_read_ends_the_round_and_the_mail_comes_back_on_the_schedule() -> None:
    desk = await Desk(_two_rounds, spending=Purse(is_away=True)).open()
    assert await desk.handle_mail(*mails("a")) == Nak("nobody knows")
    assert desk.deferrals == []


@pytest.mark.parametrize("reached", [False, True])
def test_a_budget_that_ends_as_a_person_stops_the_turn_leaves_it_stopped(reached: bool) -> None:
    async def script(turn: Turn) -> TurnResult:
        desk.dispatch.stop("paused by ann")
        if reached:
            turn.reach("a call")
        raise BudgetSpent(OVER)

    @in_virtual_time
    async def case() -> None:
        nonlocal desk
        desk = await Desk(script).open()
        assert await desk.handle_mail(*mails("a")) == Ack()
        completion = await desk.completion("a")
        assert completion is not None and completion.outcome == "stopped"

    desk = Desk()
    case()
