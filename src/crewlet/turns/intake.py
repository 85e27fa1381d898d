"""From raw deliveries to the events a turn takes: pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from crewlet.mail.envelope import Envelope
from crewlet.ports.mail import Delivery


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """A delivery that holds no event."""

    delivery: Delivery
    error: str


class Intake(msgspec.Struct, frozen=True, gc=False):
    """One partition, read.

    Attributes:
        events: in the order of first sight, each id once.
        undecodable: what is no event.
        triggers: ids of the events whose completion is recorded.
        chat_messages: the chat message of each trigger that has one: the second key of its completion.
        digests: of the text of each trigger whose id its sender chose.
    """

    events: tuple[Envelope, ...]
    undecodable: tuple[Undecodable, ...]
    triggers: tuple[str, ...]
    chat_messages: Mapping[str, str]
    digests: Mapping[str, str]

    def without(self, finished: Collection[str]) -> "Intake":
        """The same without the events of these ids."""
        if not finished:
            return self
        return _intake([event for event in self.events if event.id not in finished], self.undecodable)


def read(deliveries: Sequence[Delivery], event_of: Callable[[Delivery], Envelope]) -> Intake:
    """Decode a partition. A message handed over twice, or published twice under one id, is one event.

    Args:
        event_of: decodes one delivery, or raises `msgspec.MsgspecError`.
    """
    events: dict[str, Envelope] = {}
    undecodable: list[Undecodable] = []
    for delivery in deliveries:
        try:
            event = event_of(delivery)
        except msgspec.MsgspecError as error:
            undecodable.append(Undecodable(delivery, str(error)))
        else:
            events.setdefault(event.id, event)
    return _intake(events.values(), undecodable)


def _intake(events: Iterable[Envelope], undecodable: Sequence[Undecodable]) -> Intake:
    kept = tuple(events)
    ledgered = [event for event in kept if event.is_ledgered]
    chat_messages = {event.id: event.chat_message for event in ledgered if event.chat_message}
    digests = {event.id: event.digest for event in ledgered if event.digest}
    return Intake(kept, tuple(undecodable), tuple([event.id for event in ledgered]), chat_messages, digests)
