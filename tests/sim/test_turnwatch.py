"""What the judge takes for an act of a turn."""

from collections.abc import Callable
from typing import Any, cast

from crewlet.mail import topics
from crewlet.testing.sim.facts import RunningTurn
from crewlet.testing.sim.loop import Process
from crewlet.testing.sim.turnwatch import TURN, WatchedMail
from crewlet.testing.twins.mail import MailWire, TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class _Wire:
    """Notes in which turn each request leaves."""

    def __init__(self) -> None:
        self.turns: list[RunningTurn | None] = []

    async def ask(self, name: str, effect: Callable[[], Any], **_: Any) -> Any:
        self.turns.append(TURN.get())
        return effect()


@in_virtual_time
async def test_mail_that_a_turn_sends_is_an_act_of_it_and_an_event_that_is_told_beside_it_is_none() -> None:
    wire = _Wire()
    mail = WatchedMail(TwinBroker(VirtualClock(), ack_window_s=30.0), wire=cast(MailWire, wire))
    await mail.start()
    await mail.ensure_subscription(topics.inbox("ann"))
    turn = RunningTurn(Process("n0:1"), "ann", "n0:1", 1, "t1", "w1", ())
    TURN.set(turn)
    await mail.publish(topics.event("turn_completed"), b"{}", message_id="e1")
    await mail.publish(topics.inbox("ann").topic, b"{}", message_id="m1")
    assert wire.turns == [None, None, turn]
    assert TURN.get() is turn
    await mail.stop()
