"""What is read of the deliveries that an inbox has in hand."""

from datetime import UTC, datetime

import msgspec
import pytest

from crewlet.mail import conversations
from crewlet.mail.batching import MAX_BATCH_MESSAGES
from crewlet.mail.conversations import EventReader
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import decode
from crewlet.ports.mail import Delivery

AT = "2026-01-01T12:00:00.000Z"


def delivery(sequence: int, name: str, conversation: str = "") -> Delivery:
    event = Envelope(id=name, type="task_assigned", timestamp=AT, source="person", conversation=conversation)
    return Delivery(name, msgspec.json.encode(event), sequence, 1, 24, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    seen: list[bytes] = []

    def note(data: bytes) -> Envelope:
        seen.append(data)
        return decode(data)

    monkeypatch.setattr(conversations, "decode", note)
    return seen


def test_an_event_is_decoded_once_from_its_place_in_the_batch_to_its_turn(decoded: list[bytes]) -> None:
    reader, one = EventReader(), delivery(1, "a", "c")
    assert reader.conversation_of(one) == "conversation:c"
    assert reader.dated(one) == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert reader.event(one) is reader.take(one)
    assert decoded == [one.data]


def test_a_sequence_that_a_new_stream_gives_out_again_is_another_event() -> None:
    reader = EventReader()
    assert reader.event(delivery(1, "old")).id == "old"
    assert reader.take(delivery(1, "new")).id == "new"


def test_what_went_back_unworked_is_not_kept_for_ever() -> None:
    reader, many = EventReader(), 10 * MAX_BATCH_MESSAGES
    for sequence in range(many):
        reader.event(delivery(sequence, f"e{sequence}"))
    kept = sum(len(value) for value in vars(reader).values())
    assert kept <= 2 * MAX_BATCH_MESSAGES
