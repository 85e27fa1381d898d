"""From raw deliveries to the events a turn takes: pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import decode
from crewlet.ports.mail import Delivery


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A delivery that holds no event."""

    delivery: Delivery
    error: str


@dataclass(frozen=True, slots=True)
class Intake:
    """One partition, read.

    Attributes:
        events: in the order of first sight, each id once.
        undecodable: what is no event.
    """

    events: tuple[Envelope, ...]
    undecodable: tuple[Undecodable, ...]

    @property
    def triggers(self) -> tuple[str, ...]:
        """Ids of the events whose completion is recorded."""
        return tuple(event.id for event in self.events if event.is_ledgered)

    @property
    def chat_messages(self) -> dict[str, str]:
        """The chat message of each trigger that has one: the second key of its completion."""
        return {event.id: event.chat_message for event in self.events if event.is_ledgered and event.chat_message}

    def without(self, finished: Collection[str]) -> "Intake":
        """The same without the events of these ids."""
        return Intake(tuple(event for event in self.events if event.id not in finished), self.undecodable)


def read(deliveries: Sequence[Delivery]) -> Intake:
    """Decode a partition. A message handed over twice, or published twice under one id, is one event."""
    events: dict[str, Envelope] = {}
    undecodable: list[Undecodable] = []
    for delivery in deliveries:
        try:
            event = decode(delivery.data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            undecodable.append(Undecodable(delivery, str(error)))
        else:
            events.setdefault(event.id, event)
    return Intake(tuple(events.values()), tuple(undecodable))
