"""What a node publishes of what happened: beside everything else, and nothing waits for it."""

from typing import Any, cast

import msgspec
import pytest
import structlog
from node_rig import Fleet

from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.kit import logcontext
from crewlet.mail.envelope import Envelope
from crewlet.mail.events import MOST_WAITING, Events
from crewlet.mail.pauses import Wish
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Mail, Published
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class SlowMail:
    """Takes so long for each publish, and refuses the first few."""

    def __init__(self, clock: VirtualClock, *, takes_s: float = 0.0, refuses: int = 0) -> None:
        self.clock = clock
        self.takes_s = takes_s
        self.refuses = refuses
        self.published: list[tuple[str, Envelope]] = []

    async def publish(self, topic: str, data: bytes, *, message_id: str) -> Published:
        await self.clock.sleep(self.takes_s)
        if self.refuses:
            self.refuses -= 1
            raise Unavailable("nobody answered")
        self.published.append((topic, msgspec.json.decode(data, type=Envelope)))
        return Published(len(self.published))


def events_over(mail: object, clock: VirtualClock) -> Events:
    return Events(cast("Mail", mail), clock, SystemEntropy(), "n1")


def kept(broker: TwinBroker, event_type: str) -> list[dict[str, Any]]:
    """What was published of a type, oldest first."""
    found = broker.retained(f"crewlet.events.{event_type}")
    return [msgspec.json.decode(message.data, type=Envelope).payload for message in found]


@in_virtual_time
async def test_events_are_published_in_the_order_told_with_the_node_and_a_type_that_may_be_dotted() -> None:
    clock = VirtualClock()
    broker = TwinBroker(clock, ack_window_s=30.0)
    mail = TwinMail(broker, clock=clock)
    await mail.start()
    events = events_over(mail, clock)
    events.tell("turn.guard_breach", {"seat": "a", "kind": "stall"})
    events.tell("turn_trigger_skipped", {"seat": "a"})
    await events.stop()
    (breach,) = broker.retained("crewlet.events.turn.guard_breach")
    (skipped,) = broker.retained("crewlet.events.turn_trigger_skipped")
    assert breach.sequence < skipped.sequence
    event = msgspec.json.decode(breach.data, type=Envelope)
    assert (event.type, event.node, event.source) == ("turn.guard_breach", "n1", "node")
    assert event.payload == {"seat": "a", "kind": "stall"} and event.id == breach.id
    await mail.stop()


@in_virtual_time
async def test_an_event_that_nobody_takes_is_logged_and_the_next_one_goes() -> None:
    clock = VirtualClock()
    mail = SlowMail(clock, refuses=1)
    events = events_over(mail, clock)
    with structlog.testing.capture_logs() as logs:
        events.tell("seat_paused", {})
        events.tell("seat_resumed", {})
        await events.stop()
    assert [topic for topic, _ in mail.published] == ["crewlet.events.seat_resumed"]
    assert [(line["event"], line["type"]) for line in logs] == [("event_not_published", "seat_paused")]


@in_virtual_time
async def test_what_is_logged_of_an_event_bears_no_names_of_the_turn_that_told_of_another() -> None:
    clock = VirtualClock()
    events = events_over(SlowMail(clock, refuses=2), clock)
    with structlog.testing.capture_logs(processors=[logcontext.merge]) as logs:
        with logcontext.bound({"seat": "alice", "turn_id": "t1"}):
            events.tell("seat_paused", {"seat": "alice"})
        events.tell("seat_paused", {"seat": "bob"})
        await events.stop()
    assert [line["event"] for line in logs] == ["event_not_published", "event_not_published"]
    assert not any("seat" in line or "turn_id" in line for line in logs)


@in_virtual_time
async def test_no_more_than_so_many_wait_for_a_broker_that_does_not_answer_and_that_is_said_once() -> None:
    clock = VirtualClock()
    mail = SlowMail(clock, takes_s=0.001)
    events = events_over(mail, clock)
    with structlog.testing.capture_logs() as logs:
        for number in range(MOST_WAITING + 5):
            events.tell("seat_paused", {"number": number})
    await clock.sleep(10.0)
    assert [event.payload["number"] for _, event in mail.published] == list(range(MOST_WAITING))
    assert [line["event"] for line in logs] == ["events_not_published"]
    events.tell("seat_paused", {"number": -1})
    await events.stop()
    assert mail.published[-1][1].payload == {"number": -1}


@in_virtual_time
async def test_a_node_that_stops_waits_a_second_for_its_last_events_and_says_that_some_are_left() -> None:
    clock = VirtualClock()
    mail = SlowMail(clock, takes_s=0.8)
    events = events_over(mail, clock)
    for number in range(3):
        events.tell("seat_paused", {"number": number})
    began = clock.elapsed()
    with structlog.testing.capture_logs() as logs:
        await events.stop()
    assert clock.elapsed() - began == pytest.approx(1.0)
    assert [event.payload["number"] for _, event in mail.published] == [0]
    assert [(line["event"], line["count"]) for line in logs] == [("events_not_published", 2)]
    events.tell("seat_paused", {})
    await events.stop()
    assert len(mail.published) == 1


@in_virtual_time
async def test_a_trigger_that_does_not_run_again_is_published_with_the_reason_by_the_node_that_skipped_it() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    await fleet.send("a", "w1")
    await fleet.until(lambda: fleet.finished("w1"), "it ran")
    await fleet.clock.sleep(150.0)  # beyond the broker's own duplicate window
    await fleet.publish(node.commands.outbox, "a", "w1")
    await fleet.until(lambda: kept(fleet.broker, "turn_trigger_skipped"), "it is skipped")
    (skipped,) = kept(fleet.broker, "turn_trigger_skipped")
    assert (skipped["seat"], skipped["trigger"], skipped["reason"]) == ("a", "w1", "already finished: delivered")
    assert kept(fleet.broker, "turn_completed") == []
    paused = await node.commands.pausing.pause("a", Wish("p1", by="ada"))
    assert paused.is_changed
    await node.commands.pausing.pause("a", Wish("p1", by="ada"))
    await node.commands.pausing.resume("a", by="bob")
    await fleet.until(lambda: kept(fleet.broker, "seat_resumed"), "it is told")
    (paused_event,) = kept(fleet.broker, "seat_paused")
    assert (paused_event["seat"], paused_event["by"], paused_event["pause"]) == ("a", "ada", "p1")
    assert kept(fleet.broker, "seat_resumed") == [{"seat": "a", "by": "bob", "pause": "p1"}]
    await fleet.close()
