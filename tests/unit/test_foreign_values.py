"""What anybody could have written costs only itself: each reader takes a foreign value for one that it cannot read."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.nats.connection import decode
from crewlet.adapters.nats.translate import MessageAnswer, PubAck, StreamAnswer
from crewlet.mail import channel, topics
from crewlet.mail.conversations import EventReader
from crewlet.mail.deadletters import letter_of, read_letter
from crewlet.mail.journal import DELIVERIES_BUCKET, Journal
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.pauses import decode_pauses
from crewlet.mail.registry import MAILBOXES_BUCKET, MailboxRegistry
from crewlet.mail.retired import RETIREMENTS_BUCKET, Retirements
from crewlet.ports.cells import Cells, Entry
from crewlet.ports.deadletters import Handling
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Delivery
from crewlet.seats import gate, hints, keeper, news, records
from crewlet.supervisor.remains import record_in
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns import intake

NOW = datetime(2026, 12, 1, tzinfo=UTC)
DEEP = b'{"x":' + b"[" * 100_000
NAIVE = "2026-12-01T00:00:00"
INBOX = topics.inbox("writer")

FOREIGN = {
    "deep": DEEP,
    "deep_in_a_string": b"[" * 50_000 + b"]" * 50_000,
    "nothing": b"",
    "no_text": b"\xff\xfe{}",
    "half_a_pair": b'{"owner":"\\ud800","id":"\\ud800"}',
    "a_number": b"5",
    "a_list": b"[5]",
    "null": b"null",
}
foreign = pytest.mark.parametrize("value", FOREIGN.values(), ids=FOREIGN)


def entry(value: bytes, key: str = "seat.writer") -> Entry:
    return Entry(key, value, 1, NOW)


def delivery(value: bytes) -> Delivery:
    return Delivery("m1", value, 1, 1, 24, NOW)


async def put(bucket: Any, key: str, value: bytes) -> Cells:
    cells = await LocalCells(VirtualClock()).open(bucket)
    await cells.create(key, value)
    return cells


@foreign
def test_a_lease_that_cannot_be_read_is_nobodys_tenure_and_keeps_its_resource(value: bytes) -> None:
    found = records.judge(entry(value), NOW, 60.0)
    assert found.is_live
    assert found.record == records.LeaseRecord()
    rows = gate._Rows(60.0)  # pyright: ignore[reportPrivateUsage]
    rows.put(entry(value))
    preferences = hints._Preferences()  # pyright: ignore[reportPrivateUsage]
    preferences.put(entry(value))
    with pytest.raises(Unavailable):
        records.decode_epoch(entry(value))
    assert keeper._owner(entry(value)) == "a node of another build"  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ValueError, match=r".") as raised:
        news.decode(value)
    assert not isinstance(raised.value, UnicodeError)


def test_a_lease_whose_instant_has_no_zone_cannot_be_read() -> None:
    found = records.judge(entry(f'{{"owner":"n","epoch":1,"after":"{NAIVE}"}}'.encode()), NOW, 60.0)
    assert found.acquired_at == NOW


@foreign
@pytest.mark.parametrize("kind", [PubAck, MessageAnswer, StreamAnswer])
def test_an_answer_of_the_broker_that_cannot_be_read_tells_nothing(value: bytes, kind: type[PubAck]) -> None:
    with pytest.raises(Unavailable):
        decode(value.replace(b'"owner"', b'"error"'), kind)


@foreign
def test_a_dead_nodes_lease_that_cannot_be_read_ends_no_parent(value: bytes) -> None:
    assert "released" not in record_in({"message": {"data": base64.b64encode(value)}})


@foreign
def test_mail_that_is_no_event_is_told_apart(value: bytes) -> None:
    reader = EventReader()
    assert len(intake.read([delivery(value)], reader.take).undecodable) == 1
    with pytest.raises(msgspec.MsgspecError):
        reader.conversation_of(delivery(value))
    with pytest.raises(ValueError, match=r"."):
        reader.dated(delivery(value))


@foreign
def test_records_about_mail_that_cannot_be_read_are_unknown(value: bytes) -> None:
    with pytest.raises(Unavailable):
        decode_pauses(entry(value))
    _, unreadable = channel.read_all([entry(value, "channel." + "a" * 32)])
    assert len(unreadable) == 1


def test_a_pause_whose_end_has_no_zone_cannot_be_read() -> None:
    with pytest.raises(Unavailable):
        decode_pauses(entry(f'{{"seats":{{"w":{{"id":"1","since":"{NAIVE}","until":"{NAIVE}"}}}}}}'.encode()))


@foreign
def test_a_record_that_cannot_be_read_keeps_no_other_from_being_read(value: bytes) -> None:
    @in_virtual_time
    async def case() -> None:
        register = await MailboxRegistry(await put(MAILBOXES_BUCKET, "writer", value)).list()
        assert register.unreadable == {"writer"}
        cells = await put(LEDGER_BUCKET, "writer.x", value)
        ledger = Ledger(_Only(cells))  # pyright: ignore[reportArgumentType]
        assert await ledger.finished("writer", ["m1"]) == {}
        with pytest.raises(Unavailable):
            await ledger.completion("writer", "m1")
        journal = Journal(_Only(await put(DELIVERIES_BUCKET, "x", value)), "n1:1", VirtualClock())  # pyright: ignore[reportArgumentType]
        assert await journal.history(INBOX, 1, NOW) == ()
        retired = await put(RETIREMENTS_BUCKET, "writer", value)
        with pytest.raises(Unavailable):
            await Retirements(_opened(retired)).last("writer")

    case()


class _Only:
    """A bucket in which every key is the one that is there."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def read(self, key: str) -> Entry | None:
        del key
        (found,) = await self._cells.list()
        return found

    async def has_none(self, keys: Any) -> bool:
        del keys
        return False


def _opened(cells: Cells) -> Callable[[], Any]:
    async def open_cells() -> Cells:
        return cells

    return open_cells


def a_letter() -> Any:
    return letter_of(INBOX, delivery(b"x"), {"Kind": "test"}, "it broke", [Handling(1, "n1:1", NOW, "no")])


def test_a_letter_of_ours_is_read() -> None:
    letter = a_letter()
    read = read_letter(7, letter.subject, letter.headers, b"x", NOW)
    assert read.history == (Handling(1, "n1:1", NOW, "no"),)
    assert (read.subscription, read.message_id, read.published_at) == (INBOX, "m1", NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {"Crewlet-History": "5"},
        {"Crewlet-History": "[5]"},
        {"Crewlet-History": "[" * 100_000},
        {"Crewlet-History": '[[1e400,"a","2026-12-01T00:00:00Z","x"]]'},
        {"Crewlet-History": '[[99999999999999999999,"a","2026-12-01T00:00:00Z","x"]]'},
        {"Crewlet-History": '[[1,"a",5,"x"]]'},
        {"Crewlet-History": '[[null,"a","2026-12-01T00:00:00Z","x"]]'},
        {"Crewlet-History": '[[1,"\\ud800","2026-12-01T00:00:00Z","x"]]'},
        {"Crewlet-History": '[[1,"a","0001-01-01T00:00:00+23:59","x"]]'},
        {"Crewlet-Sequence": "99999999999999999999"},
        {"Crewlet-Sequence": "-1"},
        {"Crewlet-Deliveries": "9" * 5000},
        {"Crewlet-Published-At": "0001-01-01T00:00:00+23:59"},
        {"Crewlet-Published-At": "yesterday"},
        {"Crewlet-Published-At": NAIVE},
        {"Crewlet-Topic": "elsewhere"},
        {"Crewlet-Topic": "crewlet.agent.other.inbox"},
    ],
    ids=str,
)
def test_a_letter_that_is_none_of_ours_is_told_in_one_kind_of_error(changed: dict[str, str]) -> None:
    letter = a_letter()
    with pytest.raises(ValueError, match=r"."):
        read_letter(7, letter.subject, {**letter.headers, **changed}, b"x", NOW)
