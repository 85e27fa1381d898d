"""Seats that follow a fixed playbook."""

from typing import assert_never

from crewlet.company.model import Fail, Reply, ScriptRunner, ScriptStep, Send, Sleep
from crewlet.mail.channel import ChannelClosed
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import MailRefused
from crewlet.turns.runners.thread import answer_questions, conversation_of, writers_of
from crewlet.turns.turn import OutgoingMail, Turn, TurnBroke, TurnResult


class ScriptTurns:
    """Runs the steps of a `script` seat in order, the fence checked before each.

    The first reply answers the questions in the mail. Where there is none, it goes to every seat that wrote, once each,
    as do further replies; mail from people and programs has no inbox to reply to. The outcome is `delivered` when
    something was sent, else `no_action`. A recipient that does not exist, or refuses the mail, makes it `failed`:
    running the script again would meet the same.
    """

    kind = "script"

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock

    async def run(self, turn: Turn) -> TurnResult:
        script = turn.seat.runner
        if not isinstance(script, ScriptRunner):
            raise Misuse(f"{turn.seat.handle} is not a script seat")
        sent, has_answered = 0, False
        for step in script.steps:
            turn.fence.check()
            try:
                if isinstance(step, Reply) and not has_answered:
                    has_answered = True
                    if answered := await answer_questions(turn, step.text):
                        sent += answered
                        continue
                sent += await self._step(turn, step)
            except (UnknownSeat, MailRefused, ChannelClosed) as refused:
                return TurnResult("failed", str(refused))
        return TurnResult("delivered" if sent else "no_action")

    async def _step(self, turn: Turn, step: ScriptStep) -> int:
        """Do one step, and say how many mails it sent."""
        match step:
            case Reply(text):
                writers = writers_of(turn)
                for to in writers:
                    await turn.send(OutgoingMail(to, text, conversation=conversation_of(turn)))
                return len(writers)
            case Send(to, text):
                await turn.send(OutgoingMail(to, text, conversation=conversation_of(turn)))
                return 1
            case Sleep(seconds):
                await self._clock.sleep(seconds)
                return 0
            case Fail(reason):
                raise TurnBroke(reason)
            case _:
                assert_never(step)
