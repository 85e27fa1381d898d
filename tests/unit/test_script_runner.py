"""Script seats: fixed steps, in order, each behind the fence."""

import asyncio

import pytest
from dispatch_desk import Desk, delivery, event, mails
from msgspec.structs import force_setattr

from crewlet.company.model import Fail, Reply, ScriptRunner, ScriptStep, Seat, Send, Sleep
from crewlet.ports.errors import Fenced
from crewlet.ports.mail import NoMailbox
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.runners import ScriptTurns
from crewlet.turns.turn import OutgoingMail, Turn, TurnBroke, TurnResult


class _Stage:
    """A turn of a script seat whose mail goes to a list."""

    def __init__(self, *steps: ScriptStep, sources: tuple[str, ...] = ("seat:bob",)) -> None:
        self.desk = Desk()
        self.fence = self.desk.new_fence(7)
        self.sent: list[OutgoingMail] = []
        self.turn = Turn(
            "t1",
            "w1",
            Seat("alice", runner=ScriptRunner(steps)),
            [event(f"e{n}", source=source, conversation="c1") for n, source in enumerate(sources)],
            self.fence,
            self._send,
            lambda _: None,
            lambda _: None,
        )

    async def _send(self, mail: OutgoingMail) -> str:
        self.sent.append(mail)
        return f"m{len(self.sent)}"

    async def run(self) -> TurnResult:
        return await ScriptTurns(clock=self.desk.clock).run(self.turn)


@in_virtual_time
async def test_a_reply_goes_to_the_seat_that_wrote_in_the_same_conversation() -> None:
    stage = _Stage(Reply("thanks"))
    assert await stage.run() == TurnResult("delivered")
    assert stage.sent == [OutgoingMail("bob", "thanks", conversation="c1")]


@in_virtual_time
async def test_every_seat_that_wrote_gets_one_reply_and_people_get_none() -> None:
    stage = _Stage(Reply("thanks"), sources=("person", "seat:bob", "program", "seat:carol", "seat:bob"))
    await stage.run()
    assert [mail.to for mail in stage.sent] == ["bob", "carol"]


@pytest.mark.parametrize("steps", [(), (Reply("thanks"),), (Sleep(1),)])
def test_a_script_that_sends_nothing_took_no_action(steps: tuple[ScriptStep, ...]) -> None:
    @in_virtual_time
    async def case() -> None:
        assert await _Stage(*steps, sources=("person",)).run() == TurnResult("no_action")

    case()


@in_virtual_time
async def test_steps_run_in_order_and_a_sleep_takes_its_time() -> None:
    stage = _Stage(Send("bob", "one"), Sleep(40), Send("carol", "two"))
    began = asyncio.get_running_loop().time()
    await stage.run()
    assert [(mail.to, mail.body) for mail in stage.sent] == [("bob", "one"), ("carol", "two")]
    assert asyncio.get_running_loop().time() - began == pytest.approx(40)


@in_virtual_time
async def test_a_script_that_fails_breaks_its_turn_and_does_nothing_more() -> None:
    stage = _Stage(Send("bob", "one"), Fail("no luck"), Send("carol", "two"))
    with pytest.raises(TurnBroke, match="no luck"):
        await stage.run()
    assert [mail.to for mail in stage.sent] == ["bob"]


@pytest.mark.proves("FE-06")
@pytest.mark.parametrize("closes_after", [0, 1, 2])
def test_no_step_runs_after_the_fence_has_closed(closes_after: int) -> None:
    @in_virtual_time
    async def case() -> None:
        stage = _Stage(*(Send("bob", str(n)) for n in range(3)))
        whole = stage.turn.send

        async def send(mail: OutgoingMail) -> str:
            answer = await whole(mail)
            if len(stage.sent) == closes_after:
                stage.fence.close("lease_lost")
            return answer

        force_setattr(stage.turn, "send", send)
        if closes_after == 0:
            stage.fence.close("lease_lost")
        with pytest.raises(Fenced):
            await stage.run()
        assert len(stage.sent) == closes_after

    case()


@in_virtual_time
async def test_a_recipient_that_takes_no_mail_makes_the_turn_fail_without_breaking_it() -> None:
    stage = _Stage(Send("bob", "one"), Send("carol", "two"))

    async def refuse(mail: OutgoingMail) -> str:
        raise NoMailbox("no subscription covers it")

    force_setattr(stage.turn, "send", refuse)
    assert await stage.run() == TurnResult("failed", "no subscription covers it")


@in_virtual_time
async def test_a_script_runs_under_the_dispatch_like_any_runner() -> None:
    desk = Desk()
    runner = ScriptTurns(clock=desk.clock)

    async def script(turn: Turn) -> TurnResult:
        seat = Seat("alice", runner=ScriptRunner((Reply("thanks"),)))
        return await runner.run(
            Turn(turn.turn_id, turn.work_key, seat, turn.mail, turn.fence, turn.send, turn.progress, turn.reach)
        )

    desk.runner.script = script
    await desk.open()
    await desk.handle_mail(delivery(event("a", source="seat:carol", conversation="c9")), *mails("b"))
    assert [(mail.to, mail.body, mail.source) for mail in desk.mail.published] == [("carol", "thanks", "seat:alice")]
